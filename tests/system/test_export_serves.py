"""Another program serves a model from its export alone: arrays and metadata, NumPy and nothing of psd. The reader below is written from
deploy/docs/serving.md; its probabilities are those of `psworker predict`."""
import functools
import json
import math
import random
import re
import struct
import subprocess

import pytest

from training import BIN, ROOT, finish, psds, psworker, train  # noqa: F401

np = pytest.importorskip("numpy", reason="python3-numpy is not installed: arrays cannot be read")

M = (1 << 64) - 1
SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
                       "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364")


# --- the export ---

def read_safetensors(path):
    data = path.read_bytes()
    n = struct.unpack_from("<Q", data)[0]
    head = json.loads(data[8:8 + n])
    notes = head.pop("__metadata__")
    arrays = {}
    for name, item in head.items():
        begin, end = (8 + n + at for at in item["data_offsets"])
        arrays[name] = np.frombuffer(data[begin:end], {"F32": "<f4", "I64": "<i8"}[item["dtype"]]).reshape(item["shape"])
    return arrays, {name[4:]: json.loads(text) for name, text in notes.items() if name.startswith("psd:")}, \
        {name[10:]: json.loads(text) for name, text in notes.items() if name.startswith("psd.model:")}


def read_npy(folder):
    index = json.loads((folder / "tables.json").read_text())
    unescape = lambda name: re.sub("%(..)", lambda m: chr(int(m[1], 16)), name)
    return {unescape(name): np.load(folder / f"{name}.npy") for t in index["tables"] for name in t["arrays"]}, \
        {t["name"]: t for t in index["tables"]}, index["models"]


# --- keys: XXH3_64 with a seed, of up to 128 bytes (xxHash 0.8, doc/xxhash_spec.md) ---

def u64(data, at):
    return int.from_bytes(data[at:at + 8], "little")


def fold(a, b):
    product = a * b
    return (product & M) ^ (product >> 64)


def avalanche_64(h):
    h = (h ^ h >> 33) * 0xC2B2AE3D27D4EB4F & M
    h = (h ^ h >> 29) * 0x165667B19E3779F9 & M
    return h ^ h >> 32


def avalanche_3(h):
    h = (h ^ h >> 37) * 0x165667919E3779F9 & M
    return h ^ h >> 32


def mix_16(data, at, secret, seed):
    return fold(u64(data, at) ^ (u64(SECRET, secret) + seed & M), u64(data, at + 8) ^ (u64(SECRET, secret + 8) - seed & M))


def xxh3(data, seed=0):
    n = len(data)
    if n == 0:
        return avalanche_64(seed ^ u64(SECRET, 56) ^ u64(SECRET, 64))
    if n < 4:
        word = data[0] << 16 | data[n >> 1] << 24 | data[-1] | n << 8
        flip = int.from_bytes(SECRET[:4], "little") ^ int.from_bytes(SECRET[4:8], "little")
        return avalanche_64(word ^ (flip + seed & M))
    if n <= 8:
        seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big") << 32
        h = int.from_bytes(data[-4:], "little") + (int.from_bytes(data[:4], "little") << 32)
        h ^= (u64(SECRET, 8) ^ u64(SECRET, 16)) - seed & M
        h ^= ((h << 49 | h >> 15) ^ (h << 24 | h >> 40)) & M
        h = h * 0x9FB21C651E98DF25 & M
        h = (h ^ (h >> 35) + n) * 0x9FB21C651E98DF25 & M
        return h ^ h >> 28
    if n <= 16:
        low = u64(data, 0) ^ ((u64(SECRET, 24) ^ u64(SECRET, 32)) + seed & M)
        high = u64(data, n - 8) ^ ((u64(SECRET, 40) ^ u64(SECRET, 48)) - seed & M)
        return avalanche_3(n + int.from_bytes(low.to_bytes(8, "little"), "big") + high + fold(low, high) & M)
    assert n <= 128
    h = n * 0x9E3779B185EBCA87
    for i in range((n - 1) // 32 + 1):
        h += mix_16(data, 16 * i, 32 * i, seed) + mix_16(data, n - 16 * (i + 1), 32 * i + 16, seed)
    return avalanche_3(h & M)


# --- what a column's text becomes ---

def inputs(model, moments, i, text):
    """What the model reads of numeric column i."""
    n, first = (model["numeric"].get(name, 0) for name in ("hats", "first_hat"))
    x = number(model, moments, i, text)
    if not n:
        return [x]
    if text in ("", model["missing"]):
        return [x, 1] + n * [0]
    held = min(max(x, first), first + n - 1)
    return [x, 0] + [max(0, 1 - abs(held - (first + k))) for k in range(n)]


def number(model, moments, i, text):
    """Numeric column i."""
    numeric = model["numeric"]
    if text in ("", model["missing"]):
        return numeric["missing"]
    x = float(text)
    if numeric["transform"] == "log1p":
        return math.log1p(max(x, 0))
    if numeric["transform"] == "standardise":
        mean, std = moments[i], moments[len(numeric["columns"]) + i]
        return (x - mean) / (std if std > 0 and math.isfinite(std) else 1)
    return x


@functools.lru_cache(None)
def key(kind, seed, token):
    if kind == "token":
        return xxh3(token.encode(), seed)
    x = float(token)
    bucket = -1 if x < 0 else int(x) if x < 3 else int(math.log(x) ** 2) + 2
    return xxh3(bucket.to_bytes(8, "little", signed=True), seed)


def keys(model, feature, text):
    """A bag: the keys of one feature of one row."""
    separator = model["inner_separator"]
    tokens = text.split(separator) if separator and feature["kind"] == "token" else [text]
    seed, space = int(feature["seed"]), int(feature.get("hash_space", 0))
    there = [key(feature["kind"], seed, t) for t in tokens if t not in ("", model["missing"])]
    there = there or ([xxh3(b"", seed)] if model["missing_as"] == "key" else [])
    return [mix(mix(seed) ^ h % space) for h in there] if space else there


# --- rows ---

def mix(x):
    x = x + 0x9E3779B97F4A7C15 & M
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M
    return x ^ x >> 31


class Rows:
    """The rows of a table; a key that has none has its initial weights."""

    def __init__(self, arrays, table):
        self.table, self.weight = table, arrays[table["name"] + ".weight"].reshape(-1, table["dim"])
        self.at = {int(k): i for i, k in enumerate(arrays[table["name"] + ".keys"].view(np.uint64))}

    def initial(self, k):
        assert self.table["init"] in ("zero", "uniform")
        if self.table["init"] == "zero":
            return np.zeros(self.table["dim"])
        h = mix(mix(mix(int(self.table["seed"])) ^ k))
        return np.array([2 * (mix(h ^ i) >> 40) / 2 ** 24 - 1 for i in range(self.table["dim"])]) * self.table["init_scale"]

    def bag(self, bag, pooling="sum"):
        zero = np.zeros(self.table["dim"])
        return (1 / max(len(bag), 1) if pooling == "mean" else 1) * sum((self.weight[self.at[k]].astype(float) if k in self.at else self.initial(k) for k in bag), zero)


# --- the model ---

def layer(arrays, job, spec, x):
    get = lambda name: arrays[f"{job}/{spec['name']}.{name}"].astype(float)
    x = x @ get("W").reshape(spec["out"], spec["in"]).T + get("b")
    if spec["batch_norm"]:  # gamma and var are stored less 1
        x = (x - get("mean")) / np.sqrt(get("var") + 1 + 1e-5) * (get("gamma") + 1) + get("beta")
    return np.maximum(x, 0) if spec["relu"] else x


def probabilities(export, job, columns):
    """columns: name -> the texts of its rows."""
    arrays, tables, models = export
    model = models[job]
    assert model["format"] == "psd model 1" and model["hash"] == "xxh3_64"
    net, n = model["model"], len(next(iter(columns.values())))
    layers = lambda mlp: [spec for spec in net["layers"] if spec["name"].startswith(mlp)]
    moments = arrays.get(f"{job}/moments")
    bags = [[keys(model, f, columns[f["name"]][i]) for f in model["features"]] for i in range(n)]
    rows = Rows(arrays, tables[f"{job}/emb"])
    vectors = [np.stack([rows.bag(bag[i], f.get("pooling")) for bag in bags]) for i, f in enumerate(model["features"])]
    x = np.array([[x for i, c in enumerate(model["numeric"]["columns"]) for x in inputs(model, moments, i, columns[c["name"]][row])]
                  for row in range(n)])
    z = dlrm(arrays, job, net, layers, x, vectors) if net["kind"] == "dlrm" else other(arrays, job, net, layers, x, vectors)
    if net["wide"]:
        wide = Rows(arrays, tables[f"{job}/wide"])
        z = z + [sum(wide.bag(bag)[0] for bag in sample) for sample in bags]
    return 1 / (1 + np.exp(-z))


def other(arrays, job, net, layers, x, vectors):
    """The logits of a model beside DLRM."""
    z = 0
    for spec in layers("lin"):
        z = z + layer(arrays, job, spec, x)[:, 0]
    if net["kind"] == "lr":
        z = z + sum(vectors)[:, 0]
    if net["kind"] in ("fm", "deepfm"):
        z = z + sum((vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i))
    r = np.concatenate([*vectors, x], 1)
    if net["kind"] == "dcnv2":
        r = cross(arrays, job, layers("cross"), r)
    for spec in layers("top"):
        r = layer(arrays, job, spec, r)
    return z + r[:, 0] if layers("top") else z


def cross(arrays, job, specs, x0):
    x = x0
    for spec in specs:
        get = lambda name: arrays[f"{job}/{spec['name']}.{name}"].astype(float)
        narrow = x @ get("V").reshape(spec["rank"], spec["in"]).T if spec["rank"] else x
        x = x0 * (narrow @ get("W").reshape(spec["out"], -1).T + get("b")) + x
    return x


def dlrm(arrays, job, net, layers, x, vectors):
    dense = []
    if x.shape[1]:
        for spec in layers("bot"):
            x = layer(arrays, job, spec, x)
        dense, vectors = [x], [x] + vectors
    if net["interaction"] == "concat":
        r = np.concatenate(vectors, 1)
    else:
        last = 1 if net["self_interaction"] else 0
        pairs = [(vectors[i] * vectors[j]).sum(1)[:, None] for i in range(len(vectors)) for j in range(i + last)]
        r = np.concatenate(dense + pairs, 1)
    for spec in layers("top"):
        r = layer(arrays, job, spec, r)
    return r[:, 0]


# --- tests ---

def export(tmp_path, source, form):
    out = tmp_path / f"model.{form}"
    subprocess.run([BIN / "psctl", "export", source, "--out", out, "--format", form], check=True, capture_output=True)
    return (read_npy if form == "npy" else read_safetensors)(out)


def assert_served(exported, columns, flags, job="job"):
    """The probabilities of these rows, and those of predict."""
    want = np.array([float(line) for line in finish(psworker("predict", *flags))[0].split()])
    got = probabilities(exported, job, columns)
    assert len(got) == len(want) and len(set(want)) > len(want) / 3
    assert np.abs(got - want).max() < 1e-6


def columns_of(lines, names, delimiter="\t"):
    return dict(zip(names, zip(*(line.split(delimiter) for line in lines))))


CRITEO = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


@pytest.mark.parametrize("form, flags", [
    ("safetensors", ("--wide",)),
    ("npy", ("--numeric-hats", "5")),
    ("npy", ("--interaction", "concat", "--batch-norm")),
    ("npy", ("--self-interaction", "--key-scheme", "position", "--numeric-as", "raw", "--init", "zero")),
    ("npy", ("--model", "lr")),
    ("safetensors", ("--model", "fm")),
    ("npy", ("--model", "wide_deep", "--batch-norm", "--numeric-hats", "3")),
    ("npy", ("--model", "deepfm")),
    ("npy", ("--model", "dcnv2")),
    ("safetensors", ("--model", "dcnv2", "--cross-layers", "3", "--cross-rank", "7", "--wide")),
])
def test_a_synthetic_log(tmp_path, form, flags):
    for seed in (1, 2):  # of the other log, many tokens have no row
        finish(psworker("synth", "--rows", 1500, "--cardinality", 3000, "--seed", seed, "--output", tmp_path / f"{seed}.tsv"))
    has = {"lr": (), "fm": ("--dim", 4), "dlrm": ("--dim", 4, "--top", "8", "--bottom", "8,6")}
    shape = (*has.get(flags[1] if "--model" in flags else "dlrm", ("--dim", 4, "--top", "8")), *flags)
    columns = () if "raw" not in flags else ("--delimiter", "\\t", "--columns", ",".join(CRITEO), "--label", "label", "--numeric", "1-13",
                                              "--categorical", "14-39", "--format", "")
    train("--data", tmp_path / "1.tsv", "--local", "--save", tmp_path / "model", *shape, *(columns or ("--format", "criteo")))
    lines = (tmp_path / "2.tsv").read_text().splitlines()[:400]
    (tmp_path / "some.tsv").write_text("\n".join(lines) + "\n")
    exported = export(tmp_path, tmp_path / "model", form)
    features = exported[2]["job"]["features"]
    assert [f["name"] for f in features] == CRITEO[14:]
    assert [int(f["seed"]) for f in features] == (list(range(26)) if "position" in flags else [xxh3(f["name"].encode()) for f in features])
    assert_served(exported, columns_of(lines, CRITEO),
                  ("--data", tmp_path / "some.tsv", "--labelled", "--checkpoint", tmp_path / "model", *shape, *(columns or ("--format", "criteo"))))


def odd_log(path, rng, n):
    """Bags, missing values, columns that share tokens, long tokens, numbers of all kinds."""
    item = lambda: rng.choice(["", "?", *(f"item {i} " + "x" * (i * 3 % 90) for i in range(60))])
    lines = []
    for _ in range(n):
        bag = "|".join(item() for _ in range(rng.randrange(4)))
        number = lambda: rng.choice(["", "?", "-3", "0", "2.5", "17", "1e4", f"{rng.gauss(50, 20):.3f}"])
        lines.append(";".join((rng.choice("01"), item(), bag, number(), number(), rng.choice(["oslo", "rome", "?", "a"]))))
    path.write_text("y;target;history;age;price;city\n" + "\n".join(lines) + "\n")
    return lines


@pytest.mark.parametrize("missing_as", ["key", "skip"])
def test_bags_shared_tables_buckets_and_means(psds, tmp_path, missing_as):
    rng = random.Random(5)
    odd_log(tmp_path / "log.csv", rng, 3000)
    lines = odd_log(tmp_path / "other.csv", rng, 400)
    node = psds("--shards", 2)
    flags = ("--job", "odd", "--delimiter", ";", "--header", "--label", "y", "--numeric", "price", "--bucketise", "age", "--numeric-as", "standardise",
             "--categorical", "*", "--missing", "?", "--missing-as", missing_as, "--inner-separator", "|", "--share-table", "target,history",
             "--dim", 4, "--bottom", "8", "--top", "8,4", "--batch", 64, "--lr", 0.01, "--init-scale", 0.05)
    if missing_as == "skip":
        flags = (*flags, "--field", "history:pooling=mean", "--field", "age:hash-space=9", "--field", "city:hash-space=3", "--numeric-hats", 4)
    train("--data", tmp_path / "log.csv", "--servers", node.address, *flags)
    subprocess.run([BIN / "psctl", "--server", node.address, "checkpoint"], check=True, capture_output=True)
    exported = export(tmp_path, node.data, "safetensors")
    features = {f["name"]: f for f in exported[2]["odd"]["features"]}
    assert list(features) == ["target", "history", "city", "age"]
    assert features["history"]["seed"] == features["target"]["seed"] and features["history"]["table"] == "target"
    assert_served(exported, columns_of(lines, ["y", "target", "history", "age", "price", "city"], ";"),
                  (*flags, "--data", tmp_path / "other.csv", "--labelled", "--servers", node.address), "odd")


def test_adult_data(tmp_path):
    flags = ("--config", ROOT / "deploy/adult.conf")
    train(*flags, "--epochs", 1, "--data", ROOT / "tests/data/adult.data.zst", "--local", "--save", tmp_path / "model")
    text = subprocess.run(["zstd", "-dc", ROOT / "tests/data/adult.test.zst"], check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if line.count(", ") == 14][:500]
    (tmp_path / "test").write_text("\n".join(lines) + "\n")
    names = re.search("^columns = (.*)$", (ROOT / "deploy/adult.conf").read_text(), re.M)[1].split(",")
    assert_served(export(tmp_path, tmp_path / "model", "safetensors"), columns_of(lines, names, ", "),
                  (*flags, "--data", tmp_path / "test", "--labelled", "--checkpoint", tmp_path / "model"), "adult")


@pytest.mark.parametrize("name, shown", [("größe".encode(), "größe"), ("größe".encode("latin-1"), "größe"), (b"\xe0\x80\x80", "\xe0\x80\x80"),
                                         (b"\xed\xa0\x80", "\xed\xa0\x80"), ("\U0001f600\uffff".encode(), "\U0001f600\uffff"), (b"a\"\\b\x01", 'a"\\b\x01'),
                                         (b"cut\xe2\x82", "cut\xe2\x82")])
def test_any_bytes_of_a_name_make_metadata_that_can_be_read(tmp_path, name, shown):
    (tmp_path / "log").write_bytes(b"y\t" + name + b"\n" + b"".join(b"%d\tt%d\n" % (i % 2, i % 7) for i in range(99)))
    train("--data", tmp_path / "log", "--header", "--label", "y", "--categorical", "*", "--dim", 2, "--top", 4, "--interaction", "concat", "--local",
          "--save", tmp_path / "model")
    feature, = export(tmp_path, tmp_path / "model", "safetensors")[2]["job"]["features"]
    assert feature["name"] == feature["table"] == shown and int(feature["seed"]) == xxh3(name)


def test_the_hash_is_that_of_psworker(tmp_path):
    (tmp_path / "log").write_text("".join(f"{i % 2}\tx\n" for i in range(9)))
    flags = ("--columns", "y,name", "--label", "y", "--categorical", "name", "--data", tmp_path / "log")
    for n in (0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 31, 32, 33, 64, 65, 96, 97, 127, 128):
        token = ("0123456789abcdefghijklmnopqrstuvwxyz" * 4)[:n]
        got = finish(psworker("key", "name", token, *flags))[0]
        assert int(got) == xxh3(token.encode(), xxh3(b"name"))
