#!/usr/bin/python3
"""A header that one file includes belongs into that file. A header and the sources of its name are a module: each header of the product
is included by two files outside its module at least, or has its reason in one_user_headers.txt. A test counts as a user, as it is one of an
interface; the last line says how many headers have a single user if tests do not count."""
import collections
import os
import re
import subprocess
import sys

REASONS = "tests/lint/one_user_headers.txt"
REASONS_MAX = 32
PRODUCT = ("common", "proto", "server", "worker", "deploy")

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
files = subprocess.run(["tests/lint/files.sh"], capture_output=True, text=True, check=True).stdout.split()
include = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
module = lambda path: os.path.splitext(path)[0]

users = collections.defaultdict(set)
for path in files:
    for header in include.findall(open(path).read()):
        header = header if "/" in header else os.path.join(os.path.dirname(path), header)
        if module(header) != module(path):
            users[header].add(path)

reasons = {}
bad = []
for line in open(REASONS):
    if line.strip() and not line.startswith("#"):
        header, _, why = line.partition(":")
        if not why.strip():
            bad.append(f"{REASONS}: {header.strip()} has no reason")
        if header in reasons:
            bad.append(f"{REASONS}: {header} stands there twice")
        reasons[header] = why.strip()
if len(reasons) > REASONS_MAX:
    bad.append(f"{REASONS}: {len(reasons)} headers with one user; at most {REASONS_MAX}")

headers = [path for path in files if path.endswith(".h") and path.split("/")[0] in PRODUCT]
for header in headers:
    by = sorted(users[header])
    if not by:
        bad.append(f"{header}: no file includes it")
    elif len(by) == 1 and header not in reasons:
        bad.append(f"{header}: only {by[0]} includes it: it belongs there, or needs a reason in {REASONS}")
    elif len(by) > 1 and header in reasons:
        bad.append(f"{REASONS}: {header} has {len(by)} users")
bad += [f"{REASONS}: no header {header}" for header in reasons if header not in headers]
for sentence in bad:
    print(sentence)
alone = [h for h in headers if len([path for path in users[h] if path.split("/")[0] in PRODUCT]) == 1]
print(f"{len(headers)} headers: {len(reasons)} have one user, {len(alone)} one user and tests" if not bad else "")
sys.exit(bool(bad))
