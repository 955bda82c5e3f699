#!/usr/bin/python3
"""Holds what libpsd.so.1 exports, and the sizes, members and numbers of psd.h, against libpsd_abi.txt: a name that is gone, a member that
has moved, a struct that has shrunk, a number that is another break programs that are built already. What was added has to be recorded:
check_abi.py build/release --write."""
import os
import re
import subprocess
import sys
import tempfile

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
HEADER, RECORD = "worker/libpsd/psd.h", "tests/lint/libpsd_abi.txt"
library = os.path.join(sys.argv[1], "lib/libpsd.so.1")


def symbols():
    out = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return [f"symbol {name}" for name in sorted(line.split()[-1] for line in out.splitlines()) if "@" in name]


def members(text):
    """(struct, [members]) of the header."""
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.S):
        names = []
        for line in re.sub(r"/\*.*?\*/", "", body, flags=re.S).split(";"):
            for part in line.split(","):
                found = re.search(r"(\w+)\s*(\[[^]]*\])?\s*$", part.strip())
                if found:
                    names.append(found.group(1))
        yield name, names


def layout():
    text = open(HEADER).read()
    lines = []
    for name, names in members(text):
        lines += [f'printf("struct {name} %zu\\n", sizeof({name}));']
        lines += [f'printf("member {name}.{m} %zu %zu\\n", offsetof({name}, {m}), sizeof((({name} *)0)->{m}));' for m in names]
    plain = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    for body in re.findall(r"enum \{(.*?)\}", plain, re.S):
        lines += [f'printf("number {n} %d\\n", (int){n});' for n in re.findall(r"\b(PSD_\w+)", body)]
    lines += [f'printf("number {n} %d\\n", {n});' for n in re.findall(r"#define (PSD_\w+) +\d", plain)]
    # Prototypes, as text without names of files or blanks.
    for prototype in re.findall(r"^[a-z][^;{}#]*?\bpsd_\w+\([^;]*\);", plain, re.M):
        words = re.sub(r"\s+", " ", prototype).replace('"', '\\"').replace("%", "%%")
        lines += [f'printf("function {words}\\n");']
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
        with open(source, "w") as out:
            out.write(f'#include "{os.path.abspath(HEADER)}"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n'
                      + "\n".join(lines) + "\nreturn 0;\n}\n")
        subprocess.run([os.environ.get("CC", "cc").split()[-1], "-std=c99", "-o", program, source], check=True)
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


if not os.path.exists(library):
    print(f"{library} is not there: make libpsd")
    sys.exit(1)
have = symbols() + layout()
if "--write" in sys.argv:
    with open(RECORD, "w") as out:
        out.write("\n".join(have) + "\n")
    sys.exit(0)
recorded = open(RECORD).read().splitlines()
gone = [line for line in recorded if line not in have]
new = [line for line in have if line not in recorded]
for line in gone:
    print(f"{line}: recorded in {RECORD}, and not so any more: programs that are built already break")
for line in new:
    print(f"{line}: not recorded in {RECORD}: check_abi.py {sys.argv[1]} --write, if it was added at the end")
sys.exit(bool(gone or new))
