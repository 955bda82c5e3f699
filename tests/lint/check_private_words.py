#!/usr/bin/python3
"""Names are the field's terms: no identifier and no file is named by a word of private_words.txt, nor by what grammar
makes of one. EXCEPTIONS are other people's names, and contracts."""
import os
import re
import subprocess
import sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
EXCEPTIONS = {
    "MSG_PEEK": "of <sys/socket.h>",
    "cut_every": "the setting --cut-every",
}


def forms(word):
    """The word, and what it is with -s, -d, -ed, -ing, -er: settle, settled, settling; cut, cuts, cutting, cutter."""
    stem = word.removesuffix("e")
    last = stem[-1]
    return rf"(?:{word}(?:s|es)?|{stem}{last}?(?:e?d|ing|er)s?)"


words = [line.split()[0] for line in open("tests/lint/private_words.txt") if line.strip() and not line.startswith("#")]
banned = re.compile(r"(?:^|_)(%s)(?:$|_)" % "|".join(map(forms, words)))
token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\n', re.S)
files = subprocess.run(["tests/lint/files.sh", "common", "proto", "server", "worker", "deploy"], capture_output=True, text=True,
                       check=True).stdout.split()
bad = False
for path in files:
    if hit := banned.search(os.path.splitext(os.path.basename(path))[0]):
        print(f"{path}: a file may not be named by \"{hit[1]}\"")
        bad = True
    line = 1
    for text in token.findall(open(path).read()):
        if (text[0].isalpha() or text[0] == "_") and text not in EXCEPTIONS and (hit := banned.search(text.lower())):
            print(f"{path}:{line}: \"{hit[1]}\" in {text}")
            bad = True
        line += text.count("\n")
sys.exit(bad)
