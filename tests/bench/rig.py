"""What the yardsticks of psworker share: processes that never outlive them, data, medians, reports.

A yardstick is a script that takes the folder of the programs, starts what it needs, writes one JSON line a case and prints a
markdown table. psd and psworker are black boxes to it: a case is a list of their flags, and one whose flags this psworker does not
know is left out with a sentence.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("PS_SHARED", ROOT / "../shared"))
CRITEO = SHARED / "data/criteo/criteo_dev_110000.tsv.zst"
CRITEO_TRAIN_ROWS = 99_000
# What the published figures were made with: PyTorch's optimizer and rate for all tables, and rows as wide as the yardstick's.
PLAIN_TRAINING = ["--optimizer", "adagrad", "--lr", 0.01, "--dense-optimizer", "same", "--init-scale", 0.05]
READY = re.compile(r"psd ready: listening on ([^,\s]+)")
READY_S = 30
STOP_S = 60
RUN_S = 1800  # no run of psworker takes longer


class Trouble(Exception):
    """One sentence for whoever started the yardstick."""


def say(line=""):
    print(line, flush=True)


def note(line):
    """What goes on, apart from the table."""
    print(line, file=sys.stderr, flush=True)


def table(head, rows):
    say("| " + " | ".join(head) + " |")
    say("|" + " --- |" * len(head))
    for row in rows:
        say("| " + " | ".join(map(str, row)) + " |")
    say()


def run(main):
    """main() with SIGTERM and ^C as exceptions, so that every `with` cleans up. Exits 1 with a sentence, 2 for wrong words."""
    def on_signal(number, _):
        raise Trouble(f"stopped by {signal.Signals(number).name}")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    try:
        main()
    except Trouble as trouble:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {trouble}")


def options(doc, name, rounds):
    """The options that all yardsticks have, for more to be added; read them with read()."""
    p = argparse.ArgumentParser(description=doc.splitlines()[0])
    p.add_argument("bin", type=pathlib.Path, help="the folder of psd and psworker")
    p.add_argument("--quick", action="store_true", help="few synthetic rows: does it all run?")
    p.add_argument("--json", type=pathlib.Path, default=ROOT / f"build/bench/{name}.jsonl", metavar="FILE",
                   help=f"one line for each case [build/bench/{name}.jsonl]")
    p.add_argument("--data", type=pathlib.Path, default=CRITEO, help="Criteo text [the sample in PS_SHARED, else synthetic rows]")
    p.add_argument("--train-rows", type=int, default=0, help="the others test [nine of ten]")
    p.add_argument("--seeds", type=numbers, default=list(range(1, rounds + 1)), help=f"a round each [1 to {rounds}]")
    p.add_argument("--cpus", default="0,1", help="the cores that all share [%(default)s]")
    return p


def numbers(text):
    return [int(word) for word in text.split(",")]


def read(parser):
    o = parser.parse_args()
    for program in ("psd", "psworker"):
        if not os.access(o.bin / program, os.X_OK):
            parser.error(f"{o.bin / program} is not there: run make first")
    o.bin = o.bin.resolve()
    if o.quick:
        o.seeds = o.seeds[:1]
    return o


# --- reports ---

def machine():
    with open("/proc/cpuinfo") as f:
        names = [line.split(":")[1].strip() for line in f if line.startswith("model name")]
    with open("/proc/meminfo") as f:
        kib = int(f.readline().split()[1])
    return {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "cpu": names[0] if names else platform.processor(), "cores": os.cpu_count(),
            "memory_gib": round(kib / 2**20), "kernel": platform.release()}


def write_lines(path, cases):
    path.parent.mkdir(parents=True, exist_ok=True)
    about = machine()
    path.write_text("".join(json.dumps({**about, **case}) + "\n" for case in cases))
    say(f"{about['date']}, {about['cores']} x {about['cpu']}, {about['memory_gib']} GiB; everything in {path}")
    say()


def mean_and_spread(values, form):
    if not values:
        return "-"
    spread = f" ± {form.format(statistics.stdev(values)).lstrip('+')}" if len(values) > 1 else ""
    return form.format(statistics.mean(values)) + spread


def median_and_range(values, form="{:.2f}"):
    if not values:
        return "-"
    return f"{form.format(statistics.median(values))} ({form.format(min(values))} to {form.format(max(values))})"


# --- other programs ---

def busy_s():
    """CPU seconds of all cores since the machine started, with those that its host took (steal)."""
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, softirq, steal, *_ = map(int, f.readline().split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_s():
    """CPU seconds of this process and those it has waited for."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def monitored(run, *args):
    """run(*args), which starts and ends its processes, with `others_share`: what other programs took of the machine's cores meanwhile.
    A figure is worth what this leaves of it."""
    busy, own, start = busy_s(), own_s(), time.monotonic()
    result = run(*args)
    cores_s = (time.monotonic() - start) * os.cpu_count()
    return {**result, "others_share": max(busy_s() - busy - (own_s() - own), 0) / cores_s}


def say_others(runs):
    shares = [100 * run["others_share"] for run in runs]
    say(f"Other programs took {statistics.median(shares):.0f} % of the cores in the median run, {max(shares):.0f} % in the worst.")
    say()


# --- processes ---

class Rig:
    """Everything started here is gone when its `with` ends, however it ends."""

    def __init__(self, o):
        self.o = o
        self.running = []

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="psbench-")
        self.scratch = pathlib.Path(self.folder.name)
        return self

    def __exit__(self, *_):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # nothing cuts the clean-up short
        for process in self.running:
            self.kill(process)
        self.folder.cleanup()

    def kill(self, process):
        if process.poll() is None:
            process.kill()  # also what is stopped
            process.wait()

    def start(self, command, prefix=(), **more):
        """On the cores that all share, behind a prefix such as `ip netns exec NAME`."""
        process = subprocess.Popen([*prefix, "taskset", "-c", self.o.cpus, *map(str, command)], start_new_session=True,
                                   stdin=subprocess.DEVNULL, **more)
        self.running.append(process)
        return process

    def finish(self, process, what, log, timeout_s=RUN_S):
        """Its peak memory in bytes, once it has ended well."""
        end = time.monotonic() + timeout_s
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                raise Trouble(f"{what} did not end within {timeout_s} s")
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.running.remove(process)
        if process.returncode:
            raise Trouble(f"{what} ended with status {process.returncode}: {log.read_text()[-2000:].strip()}")
        return usage.ru_maxrss * 1024

    @contextlib.contextmanager
    def psd(self, *flags, listen="127.0.0.1:0", prefix=()):
        """A fresh psd that keeps nothing on disk; its address."""
        path = self.scratch / "psd.log"
        with open(path, "w") as log:
            psd = self.start([self.o.bin / "psd", "--listen", listen, "--insecure", "--http", "off", "--shards", 1,
                              "--data-dir", "", *flags], prefix, stderr=log)
        try:
            end = time.monotonic() + READY_S
            while not (match := READY.search(path.read_text())):
                if psd.poll() is not None or time.monotonic() > end:
                    raise Trouble(f"psd is not ready: {path.read_text()[-2000:].strip()}")
                time.sleep(0.02)
            yield match[1]
            psd.terminate()
            self.finish(psd, "psd", path, STOP_S)
        finally:
            self.kill(psd)
            if psd in self.running:
                self.running.remove(psd)

    def status_of(self, process):
        """None while it runs, else its exit status; finish() stays due."""
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended.si_status if ended else None

    def worker(self, command, flags, prefix=(), name="psworker"):
        """A psworker that runs, with its JSON lines and its log in files; end it with result()."""
        lines, log = self.scratch / f"{name}.jsonl", self.scratch / f"{name}.log"
        with open(lines, "w") as out, open(log, "w") as err:
            process = self.start([self.o.bin / "psworker", command, "--format", "criteo", "--json", "-", "--log-level", "warn", *flags],
                                 prefix, stdout=out, stderr=err)
        process.lines, process.log = lines, log
        return process

    def result(self, process):
        """The last JSON line, and the peak of its memory (or of this process's, from which a child's begins, if that was more)."""
        peak = self.finish(process, "psworker", process.log)
        line = json.loads(process.lines.read_text().splitlines()[-1])
        return {**line, "peak_memory_bytes": peak}

    def psworker(self, command, flags, prefix=()):
        """One run to its end."""
        return self.result(self.worker(command, flags, prefix))

    def refusal(self, flags):
        """What psworker says to flags that it does not know; None if it knows them all."""
        got = subprocess.run([self.o.bin / "psworker", "train", "--format", "criteo", "--data", "/dev/null", "--check", *map(str, flags)],
                             capture_output=True, text=True, timeout=READY_S, stdin=subprocess.DEVNULL)
        return (got.stderr or got.stdout).strip().splitlines()[-1] if got.returncode else None

    def known(self, cases):
        """The (name, flags) that this psworker can run."""
        kept = []
        for name, flags in cases:
            why = self.refusal(flags)
            if why:
                note(f"left out: {name} ({why})")
            else:
                kept.append((name, flags))
        return kept

    # --- data ---

    def text(self):
        """The click log as plain text and its number of training rows; names the data in .data_name."""
        o, path = self.o, self.scratch / "rows.tsv"
        if o.quick or not o.data.exists():
            if o.data != CRITEO and not o.data.exists():
                raise Trouble(f"--data: {o.data} is not there")
            n = 6_000 if o.quick else 110_000
            if o.quick:
                note("--quick: a few synthetic rows show that everything runs; neither speed nor AUC means anything.")
            self.data_name = f"{n:,} synthetic rows"
            if not o.quick:
                note(f"{CRITEO} is not there, and PS_SHARED names no other place: {self.data_name} stand for it.")
            self.call([o.bin / "psworker", "synth", "--rows", n, "--seed", 1, "--output", path])
        else:
            self.data_name = "the Criteo sample" if o.data == CRITEO else o.data.name
            with open(path, "w") as out:
                self.call(["zstd", "-dcf", o.data] if o.data.suffix == ".zst" else ["cat", o.data], stdout=out)
        with open(path, "rb") as f:
            n = sum(1 for _ in f)
        n_train = o.train_rows or (CRITEO_TRAIN_ROWS if self.data_name == "the Criteo sample" else n * 9 // 10)
        if not 0 < n_train < n:
            raise Trouble(f"--train-rows: found {n_train}, expected fewer than the {n} rows of {self.data_name}")
        return path, n_train

    def parts(self):
        """The click log cut into two files: rows to train on, rows to test with."""
        path, n_train = self.text()
        train, test = self.scratch / "train.tsv", self.scratch / "test.tsv"
        head(path, n_train, train)
        with open(path, "rb") as source, open(test, "wb") as target:
            target.writelines(line for i, line in enumerate(source) if i >= n_train)
        return train, test, n_train

    def call(self, command, why=None, **more):
        """A helper program to its end; what it wrote. why: the sentence if it fails."""
        pipes = {"stdout": subprocess.PIPE} | more
        try:
            got = subprocess.run([*map(str, command)], stderr=subprocess.PIPE, text=True, timeout=RUN_S,
                                 stdin=subprocess.DEVNULL, **pipes)
        except FileNotFoundError as missing:
            raise Trouble(f"{missing.filename} is not there: install it first") from None
        if got.returncode:
            raise Trouble(why or f"{' '.join(map(str, command))}: {got.stderr.strip()[-2000:]}")
        return got.stdout


def head(path, n_rows, target):
    """The first rows of a text."""
    with open(path, "rb") as source, open(target, "wb") as out:
        out.writelines(line for i, line in enumerate(source) if i < n_rows)
    return target

