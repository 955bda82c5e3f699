#!/usr/bin/python3
"""A file that a comment names is in the tree: by its path from the root, or by its name alone; pages (.md), too."""
import glob
import os
import re
import subprocess
import sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
files = subprocess.run(["tests/lint/files.sh"], capture_output=True, text=True, check=True).stdout.split()
pages = [path for path in glob.glob("**/*.md", recursive=True) if not path.startswith("build/")]
names = {os.path.basename(path) for path in files + pages} | {"ps.pb-c.h"}
token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\n', re.S)
named = re.compile(r"(?<![\w<.-])((?:\w+/)*\w+\.(?:h|c|cu|cpp|md))\b(?!\w)")
bad = False
for path in files:
    line = 1
    for text in token.findall(open(path).read()):
        if text.startswith("/"):
            for name in named.findall(text):
                if "_X." not in name and os.path.basename(name) not in names or (name.count("/") > 1 and not os.path.exists(name)):
                    print(f"{path}:{line}: no file {name}")
                    bad = True
        line += text.count("\n")
sys.exit(bad)
