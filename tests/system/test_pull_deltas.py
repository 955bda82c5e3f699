"""Pulls of differences: exact ones change no bit of lock step, also over a restart of psd; others save bytes within their tolerance."""
from checkpoint import read_tables
from training import finish, free_ports, in_time, psds, psworker, result, synth  # noqa: F401

SMALL = ("--format", "criteo", "--bottom", "32", "--top", "32", "--dim", "16", "--batch", "32", "--seed", "7", "--optimizer", "adagrad")


def start_job(node, data, n_workers, *flags):
    return [psworker("train", "--data", data, "--servers", node.address, *SMALL, "--workers", n_workers, "--rank", rank, "--json", "-", *flags)
            for rank in range(n_workers)]


def trained(psds, data, n_workers, *flags, psd_flags=()):
    """What a fresh node's checkpoint holds then, and the workers' results."""
    node = psds("--shards", 2, *psd_flags)
    lines = [result(finish(w)[0]) for w in start_job(node, data, n_workers, *flags)]
    node.stop()
    return read_tables([node.data]), lines


def bytes_in(lines):
    return sum(line["bytes_in"] for line in lines)


def test_exact_differences_end_in_the_same_bits_with_fewer_bytes(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 3000)
    want, plain = trained(psds, data, 3)
    got, lines = trained(psds, data, 3, "--pull-deltas")
    assert got == want
    assert bytes_in(lines) < bytes_in(plain)
    for memory in ("0", "100K"):  # of the node; of a worker
        got, lines = trained(psds, data, 3, "--pull-deltas", psd_flags=("--pull-delta-max", memory))
        assert got == want
    assert trained(psds, data, 3, "--pull-deltas", "--row-cache", "60K")[0] == want


def test_pushes_do_not_bring_the_keys_of_their_pulls_again(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 3000)
    want, named = trained(psds, data, 2)
    got, whole = trained(psds, data, 2, psd_flags=("--pull-delta-max", 0))
    assert got == want
    n_keys = sum(line["bytes_out"] for line in whole) - sum(line["bytes_out"] for line in named)
    assert n_keys > 3000 * 26  # a byte a key, at least


def test_a_restart_of_psd_changes_no_bit(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 6000)
    want = trained(psds, data, 2)[0]

    def attempt(n):
        folder, listen = tmp_path / f"again{n}", f"127.0.0.1:{free_ports(1)[0]}"
        node = psds("--shards", 2, listen=listen, dir=folder)
        workers = start_job(node, data, 2, "--pull-deltas", "--progress-every", "20ms")
        for _ in range(2):
            assert workers[0].stdout.readline()
        node.stop()
        again = psds("--shards", 2, listen=listen, dir=folder)
        lines = [result(finish(w)[0]) for w in workers]
        again.stop()
        return read_tables([again.data]) if any(line["reconnects"] for line in lines) else None

    assert in_time(attempt) == want


def test_four_workers_with_a_tolerance_pull_few_bytes(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 4000)
    mode = ("--mode", "ssp", "--staleness", "4")
    plain = trained(psds, data, 4, *mode)[1]
    lines = trained(psds, data, 4, *mode, "--pull-deltas", "--pull-tolerance", "0.003", "--dense-pull-tolerance", "0.001")[1]
    assert bytes_in(lines) < bytes_in(plain) / 6
    assert all(line["bytes_saved"] > 0 for line in lines)
    topk = ("--dense-push-codec", "topk", "--pull-deltas", "--dense-pull-tolerance", "0.001", "--dense-pull-delta-codec")
    onebit, sparse = (trained(psds, data, 4, *mode, *topk, codec)[1] for codec in ("onebit", "sparse"))
    assert bytes_in(sparse) < bytes_in(onebit)


def test_lock_step_refuses_a_tolerance(tmp_path):
    _, err = finish(psworker("train", "--data", "/dev/null", "--format", "criteo", "--workers", 2, "--rank", 0, "--pull-deltas",
                             "--pull-tolerance", "0.1"), status=2)
    assert "lock step" in err
