#!/usr/bin/python3
"""What make gpu-check has found, as a short table in markdown: report.py FOLDER

Reads phases.jsonl, facts.json, bench.jsonl, torch.jsonl and end_to_end.jsonl there. Only what was measured is said: what is missing is
a dash, with the phase's reason in the list of phases. Ratios are of figures of this one run.
"""
import json
import pathlib
import sys

OPS_OF = (65536, 128, "tf32")  # whose ops are listed
DASH = "-"


class Results:
    def __init__(self, folder):
        self.phases = read_lines(folder / "phases.jsonl")
        self.facts = read_facts(folder / "facts.json")
        bench = read_lines(folder / "bench.jsonl")
        self.steps = [line for line in bench if line["kind"] == "step"]
        self.ops = [line for line in bench if line["kind"] == "op"]
        self.encodes = [line for line in bench if line["kind"] == "encode"]
        self.dedups = [line for line in bench if line["kind"] == "dedup"]
        self.parts = [line for line in bench if line["kind"] == "parts"]
        self.projects = [line for line in bench if line["kind"] == "project"]
        self.products = read_lines(folder / "products.jsonl")
        self.torch = read_lines(folder / "torch.jsonl")
        self.ends = read_lines(folder / "end_to_end.jsonl")


def read_lines(path):
    """Its objects; a last line that was cut short is none."""
    lines = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return lines


def read_facts(path):
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


# --- numbers ---

def number(value, form="{:,.0f}"):
    return DASH if value is None else form.format(value)


def millions(value):
    return number(None if value is None else value / 1e6, "{:.2f}")


def quotient(a, b):
    return None if a is None or not b else a / b


def key_of(line):
    return line["batch"], line["dim"], line["products"]


def best_torch(results, key):
    """(samples a second, the way) of the fastest way that ran, or (None, None)."""
    ran = [(line["samples_per_s"], " ".join(filter(None, (line["way"], line.get("lookup"))))) for line in results.torch if key_of(line) == key and "samples_per_s" in line]
    return max(ran, default=(None, None))


# --- sections ---

def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def version(cublaslt):
    return DASH if cublaslt is None else f"{cublaslt // 10000}.{cublaslt // 100 % 100}.{cublaslt % 100}"


def about(results):
    f = results.facts
    if not f:
        return ["There are no facts about a GPU.", ""]
    cuda = f.get("driver_cuda")
    return [f"{f.get('date', DASH)}: {f.get('device', DASH)}, {number(f.get('sms'))} SMs, compute capability "
            f"{f.get('compute_capability', DASH)}, {number(quotient(f.get('memory_bytes'), 2**30))} GiB; driver for CUDA "
            f"{DASH if cuda is None else f'{cuda // 1000}.{cuda % 1000 // 10}'}, cublasLt {version(f.get('cublaslt'))}.",
            "",
            f"Copy {number(f.get('copy_gb_s'))} GB/s; products {number(f.get('gemm_tf32_tflop_s'))} TFLOP/s TF32, "
            f"{number(f.get('gemm_bf16_tflop_s'))} bf16; pinned memory {number(f.get('h2d_gb_s'), '{:.1f}')} GB/s in, "
            f"{number(f.get('d2h_gb_s'), '{:.1f}')} out; a launch {number(f.get('launch_us'), '{:.2f}')} us, a graph of 30 kernels "
            f"{number(f.get('graph_launch_us'), '{:.2f}')} us to launch, {number(f.get('graph_us'), '{:.1f}')} us to run.", ""]


def phases(results):
    rows = [[p["phase"], p["result"], f"{p['seconds']} s", p["why"] or DASH] for p in results.phases]
    return table(["phase", "result", "took", "why"], rows)


def steps(results):
    if not results.steps:
        return []
    rows = []
    for step in sorted(results.steps, key=key_of):
        torch, way = best_torch(results, key_of(step))
        faster = quotient(step["samples_per_s"], torch)
        rows.append([*key_of(step), number(step["graph_us"]), number(step["eager_us"]), number(step["floor_us"]),
                     number(step["ratio"], "{:.2f}"), millions(step["samples_per_s"]), millions(step["whole_samples_per_s"]),
                     DASH if torch is None else f"{millions(torch)} ({way})", number(faster, "{:.2f}")])
    return ["A step on the GPU alone: median us with a graph and without, the floor by bytes and FLOPs; M samples/s; with copies and the "
            "host's part, three steps in flight; PyTorch's fastest way.", "",
            *table(["batch", "dim", "products", "graph us", "eager us", "floor us", "graph / floor", "M/s", "with copies M/s",
                    "PyTorch M/s", "/ PyTorch"], rows)]


def ops(results):
    rows = [[op["op"], number(op["graph_us"], "{:,.1f}"), number(op["eager_us"], "{:,.1f}"), number(op["floor_bytes_us"], "{:,.1f}"),
             number(op["floor_flop_us"], "{:,.1f}"), number(op["ratio"], "{:.2f}")]
            for op in results.ops if key_of(op) == OPS_OF]
    if not rows:
        return []
    return ["Ops at batch {}, dim {}, {}:".format(*OPS_OF), "",
            *table(["op", "graph us", "eager us", "floor bytes us", "floor FLOPs us", "/ floor"], rows)]


def products(results):
    rows = [[p["products"], p["product"], f"{p['m']} x {p['n']} x {p['k']}", p["operands"], p["epilogue"], number(p["first_us"], "{:,.1f}"),
             number(p.get("best_us"), "{:,.1f}"), number(p.get("tflop_s")), p.get("best_kernel") or DASH] for p in results.products]
    if not rows:
        return []
    return ["Products by cublasLt, its first choice and the fastest of eight; how operands lie (T: transposed, column-major), what is fused:", "",
            *table(["kind", "product", "m x n x k", "operands", "fused", "first us", "fastest us", "TFLOP/s", "kernel of the fastest"], rows)]


def encodes(results):
    rows = [[e["batch"], e["dim"], e["codec"], number(e["graph_us"], "{:,.1f}"), number(e["eager_us"], "{:,.1f}"),
             number(e["floor_bytes_us"], "{:,.1f}"), number(e["ratio"], "{:.2f}"), number(e["out_bytes"] / 2**20, "{:,.1f}"),
             millions(e["whole_samples_per_s"])] for e in results.encodes]
    if not rows:
        return []
    return ["Gradients that leave the GPU encoded, rows and tensors: all encoders of a step, MiB of a step's copies out, and steps with their "
            "copies.", "", *table(["batch", "dim", "codec", "graph us", "eager us", "floor us", "/ floor", "out MiB", "with copies M/s"], rows)]


def rows(results):
    lines = [f"Duplicates among {d['keys']:,} keys ({d['rows']:,} rows) removed: {number(d['gpu_us'])} us with copies, {number(d['cpu_us'])} us on a core."
             for d in results.dedups]
    lines += [f"{p['rows']:,} rows of {p['tables']} tables projected from {p['from']} to {p['dim']}, {p['pass']}: {number(p['us'], '{:,.1f}')} us."
              for p in results.projects]
    lines += [f"{p['batch']:,} samples in {p['parts']} parts ({p['rows_of_parts']:,} rows of {p['rows']:,}): divided in {number(p['divide_us'])} us, "
              f"gradients added in {number(p['add_us'])} us on a core." for p in results.parts]
    return [line for text in lines for line in (text, "")]


def ends(results):
    if not results.ends:
        return []
    rows = []
    for end in results.ends:
        got = end.get("result", {})
        rows.append([end["case"], end["shards"], number(got.get("steady_samples_per_s")),
                     got.get("bottleneck", DASH), number(got.get("auc"), "{:.5f}"), end.get("why", DASH)])
    return ["End to end on this machine, speed from the second epoch on:", "", *table(["case", "shards", "samples/s", "bottleneck", "AUC", "why not"], rows),
            *auc_differences(results)]


def auc_differences(results):
    """Of the same seed, GPU less CPU."""
    by_seed = {}
    for end in results.ends:
        if "seed" in end and end.get("result", {}).get("auc") is not None:
            by_seed.setdefault(end["seed"], {})[end["device"]] = end["result"]["auc"]
    pairs = [(seed, got["cuda"] - got["cpu"]) for seed, got in sorted(by_seed.items()) if {"cuda", "cpu"} <= set(got)]
    if not pairs:
        return []
    return ["Test AUC, GPU less CPU: " + ", ".join(f"{difference:+.5f} (seed {seed})" for seed, difference in pairs) + ".", ""]


def report(folder):
    results = Results(folder)
    sections = ["# gpu-check", ""], about(results), steps(results), ops(results), products(results), encodes(results), rows(results), ends(results), phases(results)
    return "\n".join(line for section in sections for line in section)


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1], "phases.jsonl").exists():
        sys.exit("report.py: expected a folder with phases.jsonl, as make gpu-check leaves it")
    print(report(pathlib.Path(sys.argv[1])))


if __name__ == "__main__":
    main()
