#!/usr/bin/python3
"""Writes psd/_cdef.py: psd.h without its comments and macros, as cffi reads it. To be run when psd.h has changed; a
test says so."""

import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
ABOUT = '"""psd.h without its comments, as cffi reads it: make_cdef.py writes this file."""\n\n'


def make_cdef():
    text = (HERE.parent / "libpsd/psd.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif", "", text, flags=re.S)
    for name, value in re.findall(r"#define (\w+) (\d+)", text):
        text = re.sub(rf"\b{name}\b", value, text)
    lines = [line.rstrip() for line in text.split("\n") if line.strip() and not line.startswith("#")]
    return f'{ABOUT}CDEF = """\n' + "\n".join(lines) + '\n"""\n'


if __name__ == "__main__":
    (HERE / "psd/_cdef.py").write_text(make_cdef())
