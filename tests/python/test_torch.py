"""psd.torch: the same numbers as PyTorch's own modules; prefetch, lock step, checkpoints, exports."""

import ast
import copy
import inspect
import json
import pathlib
import pickle
import struct
import threading

import numpy as np
import pytest

pytest.importorskip("cffi", reason="cffi is missing: apt-get install python3-cffi")
torch = pytest.importorskip("torch", reason="torch is missing: apt-get install python3-torch")

import psd
import psd.torch as pt
from torch import nn

DIM, N_IDS = 8, 50
FEATURES = {"item": ["hist", "target"], "user": ["user"]}
torch.set_num_threads(1)


def random_batch(seed, n=32, weighted=False, ones=False):
    g = torch.Generator().manual_seed(seed)
    names = ["user", "hist", "target"]
    lengths = torch.ones(3 * n, dtype=torch.int64) if ones else torch.randint(0, 4, (3 * n,), generator=g)
    total = int(lengths.sum())
    values = torch.randint(0, N_IDS, (total,), generator=g)
    weights = torch.rand(total, generator=g) if weighted else None
    return pt.KeyedJaggedTensor(names, values, weights, lengths=lengths), torch.rand(n, generator=g)


class Plain(nn.Module):
    """What psd's module is held against."""

    def __init__(self, tables, pooling):
        super().__init__()
        self.bags = nn.ModuleDict({name: nn.EmbeddingBag.from_pretrained(torch.from_numpy(rows.copy()), freeze=False, sparse=True, mode=pooling,
                                                                         include_last_offset=True)
                                   for name, rows in tables.items()})

    def forward(self, jagged):
        offsets, names, out = jagged.offsets(), jagged.keys(), {}
        for table, features in FEATURES.items():
            for f in features:
                i, n = names.index(f), jagged.stride()
                o = offsets[i * n:(i + 1) * n + 1]
                w = jagged.weights_or_none()
                out[f] = self.bags[table](jagged.values()[o[0]:o[-1]], o - o[0], None if w is None else w[o[0]:o[-1]])
        return torch.cat([out[f] for t in FEATURES.values() for f in t], 1)


class Net(nn.Module):
    def __init__(self, embed):
        super().__init__()
        self.embed = embed
        torch.manual_seed(3)
        self.top = nn.Sequential(nn.Linear(3 * DIM, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, jagged):
        rows = self.embed(jagged)
        return self.top(rows.values() if hasattr(rows, "length_per_key") else rows).squeeze(1)


def configs(optimizer="sgd", lr=0.5, pooling="sum", **spec):
    return [pt.EmbeddingBagConfig(name, DIM, features, optimizer=optimizer, lr=lr, pooling=pooling, spec=spec) for name, features in FEATURES.items()]


def rows_of(client):
    client.flush()
    return {name: client.table(name).pull(np.arange(N_IDS)) for name in FEATURES}


def torch_optimizer(kind, sparse, dense, lr):
    if kind == "sgd":
        return [torch.optim.SGD(sparse + dense, lr=lr)]
    if kind == "adagrad":
        return [torch.optim.Adagrad(sparse + dense, lr=lr, eps=1e-10)]
    return [torch.optim.SparseAdam(sparse, lr=lr), torch.optim.Adam(dense, lr=lr)]


@pytest.mark.parametrize("weighted, pooling, ones", [(False, "sum", False), (True, "sum", False), (False, "mean", False), (False, "sum", True)])
@pytest.mark.parametrize("kind, lr", [("sgd", 0.1), ("adagrad", 0.01), ("adam", 0.001)])
def test_20_steps_end_in_the_weights_of_embedding_bag(client, kind, lr, weighted, pooling, ones):
    ebc = pt.EmbeddingBagCollection(client, configs(kind, lr, pooling))
    plain = Net(Plain(rows_of(client), pooling))
    model = Net(ebc)
    opt = pt.Optimizer(model, client, optimizer=kind, lr=lr)
    others = torch_optimizer(kind, [b.weight for b in plain.embed.bags.values()], list(plain.top.parameters()), lr)
    # SparseAdam counts the steps of the whole table, psd those of a row: each row is in each batch.
    n = 600 if kind == "adam" else 32
    for i in range(20):
        jagged, y = random_batch(i, n, weighted, ones)
        nn.functional.mse_loss(model(jagged), y).backward()
        opt.step()
        for o in others:
            o.zero_grad()
        nn.functional.mse_loss(plain(jagged), y).backward()
        for o in others:
            o.step()
    for name, rows in rows_of(client).items():
        np.testing.assert_allclose(rows, plain.embed.bags[name].weight.detach().numpy(), rtol=0, atol=1e-6)
    opt.dense.refresh()
    for a, b in zip(model.top.parameters(), plain.top.parameters()):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_rows_that_are_not_pooled(client):
    ec = pt.EmbeddingCollection(client, [pt.EmbeddingConfig(n, DIM, f, optimizer="sgd", lr=1) for n, f in FEATURES.items()])
    jagged, _ = random_batch(1)
    before, out = rows_of(client), ec(jagged)
    ids = jagged.values().split(jagged.lengths().view(3, -1).sum(1).tolist())
    for feature, table in (("user", "user"), ("hist", "item"), ("target", "item")):
        i = jagged.keys().index(feature)
        np.testing.assert_array_equal(out[feature].values().detach().numpy(), before[table][ids[i]])
        assert out[feature].lengths().tolist() == jagged.lengths().view(3, -1)[i].tolist()
    opt = pt.Optimizer(ec, client, dense=None)
    out = ec(jagged)
    out["user"].values().sum().backward()
    opt.step()
    count = np.bincount(ids[0].numpy(), minlength=N_IDS)
    np.testing.assert_allclose(rows_of(client)["user"], before["user"] - count[:, None], rtol=1e-6)
    np.testing.assert_array_equal(rows_of(client)["item"], before["item"])


def test_tables_of_several_widths_keep_the_order_of_features(client):
    ebc = pt.EmbeddingBagCollection(client, [pt.EmbeddingBagConfig("a", 2, ["x"]), pt.EmbeddingBagConfig("b", 3, ["y"]),
                                             pt.EmbeddingBagConfig("c", 2, ["z"])])
    out = ebc(pt.KeyedJaggedTensor.from_ids(["z", "x", "y"], torch.tensor([[1, 2, 3], [4, 5, 6]])))
    assert out.keys() == ["x", "y", "z"] and out.values().shape == (2, 7)
    np.testing.assert_array_equal(out["y"].detach().numpy(), client.table("b").pull([3, 6]))
    np.testing.assert_array_equal(out["z"].detach().numpy(), client.table("c").pull([1, 4]))
    with pytest.raises(KeyError, match="no feature 'q'"):
        out["q"]


def train(client, n_steps, depth, optimizer="adagrad", lr=0.05):
    model = Net(pt.EmbeddingBagCollection(client, configs(optimizer, lr)))
    opt = pt.Optimizer(model, client, optimizer=optimizer, lr=lr)
    batches = [random_batch(i) for i in range(n_steps)]
    for jagged, y in batches if depth is None else pt.prefetch(batches, opt, depth):
        nn.functional.mse_loss(model(jagged), y).backward()
        opt.step()
    opt.dense.refresh()
    return rows_of(client), [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("mode, depth", [("bsp", 0), ("bsp", 1), ("bsp", 3), ("async", 0), ("async", 1)])
def test_prefetch_changes_no_bit_in_lock_step_or_at_the_start(server, mode, depth):
    with psd.connect(server.url, job="a", mode=mode) as a, psd.connect(server.url, job="b", mode=mode) as b:
        for c in (a, b):
            for name in FEATURES:
                c.table(name, dim=DIM, optimizer="adagrad", lr=0.05)
        start = rows_of(a)
        for name in FEATURES:
            b.table(name).assign(np.arange(N_IDS), start[name])
            a.table(name).assign(np.arange(N_IDS), start[name])
        b.flush()
        (rows_a, dense_a), (rows_b, dense_b) = train(a, 12, None), train(b, 12, depth)
        assert a.clock == b.clock == 12
        # A pull for each batch, and a few to look: prefetched ones are not pulled twice.
        assert b.stats()["pulls"] == a.stats()["pulls"] - len(FEATURES)
    for name in FEATURES:
        np.testing.assert_array_equal(rows_a[name], rows_b[name])
    for p, q in zip(dense_a, dense_b):
        assert torch.equal(p, q)


def test_an_evaluation_between_steps_does_not_wait_for_steps_to_come(server):
    with psd.connect(server.url, job="j", mode="bsp", pull_timeout="5s") as client:
        model = Net(pt.EmbeddingBagCollection(client, configs()))
        opt = pt.Optimizer(model, client)
        for jagged, y in pt.prefetch([random_batch(i) for i in range(4)], opt, depth=2):
            nn.functional.mse_loss(model(jagged), y).backward()
            opt.step()
            model.eval()
            with torch.no_grad():
                model(random_batch(99)[0])
            model.train()
        assert client.clock == 4


def test_after_the_start_pulls_are_ahead(client):
    model = Net(pt.EmbeddingBagCollection(client, configs()))
    opt, ahead = pt.Optimizer(model, client), []
    for jagged, y in pt.prefetch([random_batch(i) for i in range(6)], opt, depth=2, exact_until=2):
        ahead.append(opt.pulls.ahead)
        nn.functional.mse_loss(model(jagged), y).backward()
        opt.step()
    assert ahead == [0, 0, 2, 2, 1, 0]


def test_a_prefetch_that_is_left_early_leaves_no_pull(client):
    model = Net(pt.EmbeddingBagCollection(client, configs()))
    opt = pt.Optimizer(model, client)
    for jagged, _ in pt.prefetch([random_batch(i) for i in range(5)], model, depth=2, exact_until=0):
        model(jagged)
        break
    opt.zero_grad()
    assert not client._handle.borrowed and not opt.collections[0].used


def test_evaluation_neither_ticks_nor_pushes(client):
    model = Net(pt.EmbeddingBagCollection(client, configs()))
    opt = pt.Optimizer(model, client)
    before, pushes = rows_of(client), client.stats()["pushes"]
    model.eval()
    with torch.no_grad():
        model(random_batch(1)[0])
    model.train()
    with torch.no_grad():
        model(random_batch(2)[0])
    assert client.clock == 0 and not opt.collections[0].used and client.stats()["pushes"] == pushes
    np.testing.assert_array_equal(rows_of(client)["item"], before["item"])


def test_gradients_of_several_forwards_are_summed(client):
    model = Net(pt.EmbeddingBagCollection(client, configs("sgd", 1)))
    plain = Net(Plain(rows_of(client), "sum"))
    opt = pt.Optimizer(model, client, optimizer="sgd", lr=1)
    for seed in (1, 2):
        jagged, y = random_batch(seed)
        nn.functional.mse_loss(model(jagged), y).backward()
        nn.functional.mse_loss(plain(jagged), y).backward()
    opt.step()
    torch.optim.SGD(plain.parameters(), lr=1).step()
    for name, rows in rows_of(client).items():
        np.testing.assert_allclose(rows, plain.embed.bags[name].weight.detach().numpy(), atol=1e-6)


def test_a_dense_part_that_torch_steps(client):
    model = Net(pt.EmbeddingBagCollection(client, configs()))
    before = copy.deepcopy(model.top.state_dict())
    opt = pt.Optimizer(model, client, dense=torch.optim.SGD(model.parameters(), lr=0.1))
    jagged, y = random_batch(1)
    nn.functional.mse_loss(model(jagged), y).backward()
    gradient = model.top[2].bias.grad.clone()
    opt.step()
    torch.testing.assert_close(model.top[2].bias, before["2.bias"] - 0.1 * gradient)
    assert opt.dense is None and client.clock == 1


def test_two_workers_in_lock_step_have_one_dense_part(server):
    found, errors = {}, []

    def work(rank):
        try:
            with psd.connect(server.url, job="two", rank=rank, workers=2, mode="bsp") as c:
                torch.manual_seed(rank)
                model = Net(pt.EmbeddingBagCollection(c, configs()))
                for p in model.top.parameters():
                    p.data += rank  # rank 0's are taken
                opt = pt.Optimizer(model, c, optimizer="sgd", lr=0.1)
                for i in range(5):
                    jagged, y = random_batch(2 * i + rank)
                    nn.functional.mse_loss(model(jagged), y).backward()
                    opt.step()
                model(random_batch(99)[0])
                found[rank] = [p.detach().clone() for p in model.parameters()]
        except BaseException as e:
            errors.append(e)
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert not errors, errors
    for p, q in zip(found[0], found[1]):
        assert torch.equal(p, q)


@pytest.mark.parametrize("dense", ["psd", "torch"])
def test_a_checkpoint_brings_both_parts_back(tmp_path, dense):
    def build(client):
        model = Net(pt.EmbeddingBagCollection(client, configs("adagrad", 0.05)))
        return model, pt.Optimizer(model, client, dense="psd" if dense == "psd" else torch.optim.Adagrad(model.parameters(), lr=0.05))

    def run(model, opt, steps):
        for i in steps:
            jagged, y = random_batch(i)
            nn.functional.mse_loss(model(jagged), y).backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            return model(random_batch(99)[0])

    with psd.local(tmp_path / "data") as server, psd.connect(server.url, job="j", mode="bsp") as c:
        model, opt = build(c)
        run(model, opt, range(4))
        numbers = pt.save(tmp_path / "model.pt", opt, epoch=7)
        model.train()
        expected = run(model, opt, range(4, 8))
        assert numbers == (1,)
    with psd.local(tmp_path / "data", at=1) as server, psd.connect(server.url, job="j", mode="bsp") as c:
        model, opt = build(c)
        assert pt.load(tmp_path / "model.pt", opt) == {"epoch": 7} and c.clock == 4
        assert torch.equal(run(model, opt, range(4, 8)), expected)
        with pytest.raises(psd.UsageError, match="of clock 4, and this worker goes on at 8"):
            pt.load(tmp_path / "model.pt", opt)


def test_an_export_scores_as_the_model(client, tmp_path):
    model = Net(pt.EmbeddingBagCollection(client, configs()))
    pt.Optimizer(model, client)
    jagged, _ = random_batch(5)
    ids = {name: np.arange(N_IDS) for name in FEATURES}
    files = pt.export(tmp_path, model, jagged, ids)
    assert files == ["item.safetensors", "user.safetensors", "net.pt", "model.json"]
    model.eval()
    with torch.no_grad():
        expected, pooled = model(jagged), model.embed(jagged).values()
        torch.testing.assert_close(torch.jit.load(str(tmp_path / "net.pt"))(pooled), expected)
    raw = (tmp_path / "item.safetensors").read_bytes()
    n, = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8:8 + n])
    assert head["__metadata__"]["features"] == '["hist", "target"]' and head["rows"]["shape"] == [N_IDS, DIM]
    first, last = head["rows"]["data_offsets"]
    np.testing.assert_array_equal(np.frombuffer(raw[8 + n + first:8 + n + last], np.float32).reshape(N_IDS, DIM), client.table("item").pull(ids["item"]))
    assert pt.export(tmp_path, model, jagged, ids, net=None, tables="npy")[0] == "item.keys.npy"


def test_an_export_as_onnx(client, tmp_path):
    model = Net(pt.EmbeddingBagCollection(client, configs()))
    assert "net.onnx" in pt.export(tmp_path, model, random_batch(5)[0], {name: [1] for name in FEATURES}, net="onnx")
    assert (tmp_path / "net.onnx").stat().st_size > 1000


@pytest.mark.parametrize("misuse, sentence", [
    (lambda c, e: e(torch.zeros(3)), "expected a KeyedJaggedTensor"),
    (lambda c, e: e(pt.KeyedJaggedTensor(["user"], torch.zeros(1, dtype=torch.int64), lengths=torch.ones(1))), "no feature 'hist'"),
    (lambda c, e: e(pt.KeyedJaggedTensor(["user", "hist", "target"], torch.zeros(3), lengths=torch.ones(3))), "expected int64"),
    (lambda c, e: e(pt.KeyedJaggedTensor(["user", "hist", "target"], torch.zeros(3, dtype=torch.int64), lengths=torch.zeros(3))), "add up to 0"),
    (lambda c, e: pt.KeyedJaggedTensor(["a"], torch.zeros(1)), "either lengths or offsets"),
    (lambda c, e: pt.EmbeddingBagCollection(c, configs(pooling="max")), "expected sum or mean"),
    (lambda c, e: pt.EmbeddingBagCollection(c, configs() + [pt.EmbeddingBagConfig("x", 2, ["user"])]), "stands in tables"),
    (lambda c, e: pt.EmbeddingBagCollection(c, configs(lr=0.25)), "item"),
    (lambda c, e: pt.Optimizer(e, c, dense="mine"), "expected 'psd'"),
    (lambda c, e: next(iter(pt.prefetch([], nn.Linear(1, 1)))), "expected a collection"),
    (lambda c, e: pickle.dumps(e), "cannot be pickled"),
])
def test_misuse_is_one_sentence(client, misuse, sentence):
    ebc = pt.EmbeddingBagCollection(client, configs())
    with pytest.raises(psd.Error, match=sentence) as caught:
        misuse(client, ebc)
    assert "\n" not in str(caught.value)
    ebc(random_batch(1)[0])


def loader_of(batches, **options):
    return torch.utils.data.DataLoader(batches, batch_size=None, **options)


def test_workers_of_a_data_loader_only_prepare_batches(client):
    model = Net(pt.EmbeddingBagCollection(client, configs()))
    opt = pt.Optimizer(model, client)
    n = 0
    for jagged, y in pt.prefetch(loader_of([random_batch(i) for i in range(6)], num_workers=2), opt):
        nn.functional.mse_loss(model(jagged), y).backward()
        opt.step()
        n += 1
    assert n == client.clock == 6


@pytest.mark.parametrize("module", [psd, pt])
def test_the_stubs_have_the_signatures(module):
    stub = ast.parse(pathlib.Path(module.__file__).with_suffix(".pyi").read_text())
    stubs = {node.name: node for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert set(module.__all__) <= set(stubs) and "__all__" not in stubs
    for name in module.__all__:
        real = getattr(module, name)
        functions = {name: (stubs[name], real)} if inspect.isfunction(real) else {
            f"{name}.{node.name}": (node, inspect.getattr_static(real, node.name)) for node in stubs[name].body
            if isinstance(node, ast.FunctionDef) and inspect.isfunction(inspect.getattr_static(real, node.name)) and node.name[0] != "_"}
        for label, (node, function) in functions.items():
            given = node.args
            named = [a.arg for a in given.args + given.kwonlyargs] + [a.arg for a in (given.vararg, given.kwarg) if a]
            assert named == list(inspect.signature(function).parameters), label
