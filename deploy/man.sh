#!/bin/sh
# Writes a man page, in roff, from a program's own --help. $1: the program, $2: what it is, in a line; $3: its version.
set -eu
name=$(basename "$1")
"$1" --help | awk -v name="$name" -v what="$2" -v version="$3" '
    # Nothing of the text may look like roff.
    function plain(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.'"'"']/, "\\\\\\&&", text); return text }
    BEGIN {
        printf ".TH %s 1 \"\" \"psd %s\"\n.SH NAME\n%s \\- %s\n", toupper(name), version, name, plain(what)
    }
    NR == 1                { sub(/^usage: /, ""); printf ".SH SYNOPSIS\n%s\n.SH DESCRIPTION\n", plain($0); next }
    /^[a-z].*:$/ && blank  { sub(/:$/, ""); printf "%s.SS %s\n", options++ ? "" : ".SH OPTIONS\n", plain($0); blank = 0; next }
                           { blank = $0 == "" }
    /^$/                   { next }
    /^  --/                {
        text = $0; sub(/^  /, "", text)
        at = match(text, /  +/)
        flag = at ? substr(text, 1, at - 1) : text
        help = at ? substr(text, at + RLENGTH) : ""
        printf ".TP\n.B %s\n", plain(flag)
        if (help != "") print plain(help)
        next
    }
    options                { sub(/^ +/, ""); print plain($0); next }
                           { printf "%s\n.br\n", plain($0) }
    END {
        printf ".SH EXIT STATUS\n0: it worked; 1: it failed; 2: it was told something wrong.\n"
        printf ".SH SEE ALSO\npsd(1), psworker(1), psctl(1)\n"
    }'
