#!/usr/bin/python3
"""Names are the field's terms: no identifier and no file, of the product or of tests, in C or in Python, is named by a word of
private_words.txt, nor by what grammar makes of one. What stands here is let through, each with its reason."""
import io
import os
import re
import subprocess
import sys
import tokenize

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
EXCEPTIONS = {
    "MSG_PEEK": "of <sys/socket.h>",
    "walk": "os.walk() of Python",
    "cut_every": "the setting --cut-every",
    "uv_timer_again": "of libuv",
    "UV_EAI_AGAIN": "of libuv",
    "rows_pulled_again": "of libps, and a key of the summary",
}
PHRASE = "power_cut"  # what everybody calls it
PRODUCT_ONLY = {
    "again": "a test does a thing twice, and names the second one",
}


WORD_ALONE = ("again", "aside", "met", "news")  # no verbs; a meter is one


def forms(word):
    """The word, and what it is with -s, -d, -ed, -ing, -er: settle, settled, settling; cut, cuts, cutting, cutter."""
    if word in WORD_ALONE:
        return word
    stem = word.removesuffix("e")
    last = stem[-1]
    return rf"(?:{word}(?:s|es)?|{stem}{last}?(?:e?d|ing|er)s?)"


def banned(words):
    found = re.compile(r"(?:^|_)(%s)(?:$|_)" % "|".join(map(forms, words)))
    return lambda name: name not in EXCEPTIONS and found.search(name.lower().replace(PHRASE, ""))


token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\n', re.S)


def names_of_c(text):
    line = 1
    for found in token.findall(text):
        if found[0].isalpha() or found[0] == "_":
            yield line, found
        line += found.count("\n")


def names_of_python(text):
    for found in tokenize.generate_tokens(io.StringIO(text).readline):
        if found.type == tokenize.NAME:
            yield found.start[0], found.string


words = [line.split()[0] for line in open("tests/lint/private_words.txt") if line.strip() and not line.startswith("#")]
in_product, in_tests = banned(words), banned([w for w in words if w not in PRODUCT_ONLY])
files = subprocess.run(["tests/lint/files.sh"], capture_output=True, text=True, check=True).stdout.split()
files += [os.path.join(where, name) for top in ("deploy", "tests") for where, _, found in os.walk(top) for name in found if name.endswith(".py")]
bad = False
for path in files:
    hits = in_tests if path.startswith("tests/") else in_product
    if hit := hits(os.path.splitext(os.path.basename(path))[0]):
        print(f"{path}: a file may not be named by \"{hit[1]}\"")
        bad = True
    names = names_of_python if path.endswith(".py") else names_of_c
    for line, name in names(open(path).read()):
        if hit := hits(name):
            print(f"{path}:{line}: \"{hit[1]}\" in {name}")
            bad = True
sys.exit(bad)
