#!/usr/bin/python3
"""Lists the way of a push through the code: which functions run, how many lines they have, in how many files.

    tests/lint/push_path.py build/release [--list]

Two runs under callgrind: psd while psbench pushes to it, counted from the socket's callback to its return, in which
the reply is sent; and psworker while it trains, counted from the trainer's call to the socket's write. Code of
libraries and generated code is left out.

A function is on the way if it ran for at least half of the pushes; then it counts with all of its lines. What ran
less often is something else that came in the same callback, and is printed as a second figure: leases and leaves,
blocks of the log that begin, sweeps of expired rows, growth of a buffer. How often a function ran is how often it was
called, or, where the compiler put it into its caller, how often one of its instructions ran there.
"""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

# A static function's name is what callgrind knows it by.
SERVER_ENTRY = ["on_read"]
WORKER_ENTRY = ["model_tables_push", "cluster_client_push"]
N_ROWS = 20000
OURS = ("common/", "proto/", "server/", "worker/")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def callgrind(out, entries, *more):
    return ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", "--compress-strings=no", "--compress-pos=no",
            "--dump-line=yes", "--dump-instr=yes", *[f"--toggle-collect={e}" for e in entries], *more]


def wait_for(path, text, process):
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if os.path.exists(path) and text in open(path).read():
            return
        time.sleep(0.1)
    sys.exit(f"push_path: no \"{text}\" in {path}")


def start_psd(bin_dir, folder, prefix=()):
    port = free_port()
    log = os.path.join(folder, "psd.log")
    process = subprocess.Popen([*prefix, f"{bin_dir}/psd", "--listen", f"127.0.0.1:{port}", "--shards", "1", "--data-dir",
                                os.path.join(folder, "data")], stderr=open(log, "w"))
    wait_for(log, "psd ready", process)
    return process, f"127.0.0.1:{port}"


def wait_for_pushes(bin_dir, address, bench):
    """Until psbench has made its rows, and pushes run."""
    n_before = None
    while bench.poll() is None:
        got = subprocess.run([f"{bin_dir}/psctl", "tables", "--json", "--server", address], capture_output=True, text=True)
        tables = json.loads(got.stdout)["tables"] if got.returncode == 0 else []
        if tables and tables[0]["rows"] == N_ROWS:
            n_before = tables[0]["pushes"] if n_before is None else n_before
            if tables[0]["pushes"] > n_before:
                return
        time.sleep(0.1)  # between two questions
    sys.exit("push_path: psbench ended before its pushes were seen")


def run_server(bin_dir, folder):
    out = os.path.join(folder, "server.out")
    psd, address = start_psd(bin_dir, folder, callgrind(out, SERVER_ENTRY, "--instr-atstart=no"))
    bench = subprocess.Popen([f"{bin_dir}/psbench", "push", "--server", address, "--rows", str(N_ROWS), "--keys-per-request", "100", "--codec",
                              "int8", "--connections", "1", "--depth", "1", "--seconds", "12", "--warmup", "1", "--timeout", "120s"],
                             stdout=subprocess.DEVNULL)
    wait_for_pushes(bin_dir, address, bench)
    subprocess.run(["callgrind_control", "-i", "on", str(psd.pid)], check=True, stdout=subprocess.DEVNULL)
    bench.wait()
    subprocess.run(["callgrind_control", "-i", "off", str(psd.pid)], check=True, stdout=subprocess.DEVNULL)
    psd.terminate()
    psd.wait()
    return out


def run_worker(bin_dir, folder):
    out = os.path.join(folder, "worker.out")
    psd, address = start_psd(bin_dir, folder)
    subprocess.run([*callgrind(out, WORKER_ENTRY), f"{bin_dir}/psworker", "train", "--config", "deploy/adult.conf", "--servers", address,
                    "--data", "tests/data/adult.test.zst", "--valid", "", "--epochs", "1", "--row-cache", "0", "--device", "cpu",
                    "--give-up", "10m"], check=True, stderr=subprocess.DEVNULL)
    psd.terminate()
    psd.wait()
    return out


class Profile:
    """What callgrind saw of our own files."""

    def __init__(self, path, entries):
        self.ran = {}  # {(file, line): {(file, function) that the code was in: how often, at most}}
        self.calls = {}  # {(file, function): how often it was called}
        root = os.getcwd() + "/"
        here = file = inside = called = None  # the function's file, the line's file, the function; who is called
        for text in open(path, errors="replace"):
            if m := re.match(r"(fl|fi|fe|cfi|cfl)=(.*)", text):
                name = m[2].replace(root, "").removeprefix("./")
                if m[1] in ("cfi", "cfl"):
                    called = name
                    continue
                file = name
                if m[1] == "fl":
                    here = name
            elif m := re.match(r"(c?)fn=(\w+)", text):
                if m[1]:
                    callee = (called or file, m[2])
                else:
                    inside = (here, m[2])
            elif m := re.match(r"calls=(\d+)", text):
                self.calls[callee] = self.calls.get(callee, 0) + int(m[1])
                called = None
                is_call = True
                continue
            elif m := re.match(r"0x[0-9a-f]+ (\d+) (\d+)", text):
                if file and file.startswith(OURS):
                    at = self.ran.setdefault((file, int(m[1])), {})
                    at[inside] = max(at.get(inside, 0), 1 if is_call else int(m[2]))
            is_call = False
        self.n_pushes = max(n for (_, name), n in self.calls.items() if name in entries)

    def files(self):
        return sorted({file for file, _ in self.ran})

    def times(self, file, name, first, last):
        """How often that function ran."""
        n = 0
        for line in range(first + 1, last + 1):  # the first one's instructions pass arguments, also where nothing follows
            for inside, times in self.ran.get((file, line), {}).items():
                n = max(n, self.calls.get(inside, times) if inside == (file, name) else times)
        return n


def functions_of(file):
    """[(name, first line, last line)]"""
    said = subprocess.run(["ctags", "--languages=C", "--langmap=C:.c.h", "--kinds-C=f", "--fields=+ne", "--_xformat=%N %n %{end}", "-x", file],
                          capture_output=True, text=True, check=True).stdout
    found = []
    for row in said.splitlines():
        name, first, last = (row.split() + ["0"])[:3]
        if last.isdigit() and int(last):
            found.append((name, int(first), int(last)))
    return found


def report(title, profile, is_listed):
    n_functions = n_lines = n_all = 0
    modules, rows, seldom = set(), [], {}
    for file in profile.files():
        here = []
        for name, first, last in functions_of(file):
            times = profile.times(file, name, first, last)
            n_all += last - first + 1 if times else 0
            if times * 2 >= profile.n_pushes:
                here.append((name, last - first + 1))
            elif times:
                seldom.setdefault(file, []).append(f"{name} {last - first + 1} ({times})")
        if not here:
            continue
        modules.add(os.path.splitext(file)[0])
        rows.append((file, here))
        n_functions += len(here)
        n_lines += sum(n for _, n in here)
    print(f"{title}: {n_lines} lines of {n_functions} functions in {len(modules)} files (a header is one with its .c); "
          f"{n_all} lines with what {profile.n_pushes} pushes met seldom")
    for file, here in rows:
        print(f"  {file}: {sum(n for _, n in here)} lines")
        for name, n in here if is_listed else []:
            print(f"      {name} {n}")
    for file, here in seldom.items() if is_listed else []:
        print(f"  seldom, {file}: {', '.join(here)}")
    return n_lines, modules


def main():
    if len(sys.argv) < 2 or not os.path.isdir(sys.argv[1]):
        sys.exit("usage: tests/lint/push_path.py build/release [--list]   (after make)")
    bin_dir, is_listed = sys.argv[1] + "/bin", "--list" in sys.argv
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        s_lines, s_modules = report("from the socket to the reply (psd)", Profile(run_server(bin_dir, a), SERVER_ENTRY), is_listed)
        w_lines, w_modules = report("from the trainer to the socket (psworker)", Profile(run_worker(bin_dir, b), WORKER_ENTRY),
                                  is_listed)
    print(f"end to end: {s_lines + w_lines} lines in {len(s_modules | w_modules)} files")


if __name__ == "__main__":
    main()
