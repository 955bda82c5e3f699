#!/bin/sh
# A program's whole help as lines of tab-separated fields, for the man pages and deploy/docs/reference.md. $1: the program.
#   usage TEXT | text TEXT | command NAME TEXT | group NAME | option FLAGS DEFAULT TEXT
set -eu
# psctl's commands have a blank line between them.
case $1 in
*psctl) set -- "$1" help all && in_blocks=1 ;;
*) set -- "$1" --help && in_blocks=0 ;;
esac
"$@" | awk -v in_blocks="$in_blocks" '
    function flush(    at, note) {
        if (kind == "option") {
            note = ""
            at = match(text, / \[[^]]*\]$/)
            if (at) { note = substr(text, at + 2, RLENGTH - 3); text = substr(text, 1, at - 1) }
            printf "option\t%s\t%s\t%s\n", flags, note, text
        } else if (kind == "command") {
            at = index(text, ": ")
            printf "command\t%s\t%s\n", substr(text, 1, at - 1), substr(text, at + 2)
        } else if (kind != "") {
            printf "%s\t%s\n", kind, text
        }
        kind = text = flags = ""
    }
    function add(more) { sub(/^ +/, "", more); if (more != "") text = text (text == "" ? "" : " ") more }
    NR == 1             { sub(/^usage: /, ""); kind = "usage"; text = $0; flush(); next }
    /^$/                { flush(); next }
    /^[a-z]+:$/         { flush(); is_in_options = 1; sub(/:$/, ""); kind = "group"; text = $0; flush(); next }
    /^  --/ {
        flush()
        kind = "option"
        line = substr($0, 3)
        at = match(line, /  +/)
        flags = at ? substr(line, 1, at - 1) : line
        if (at) add(substr(line, at + RLENGTH))
        next
    }
    is_in_options       { add($0); next }
    in_blocks && kind == "command" { add($0); next }
    # A sentence of its own, or "name: what it does".
    text == "" || text ~ /\.$/ {
        flush()
        kind = match($0, /^[a-z][^:]*: /) && RLENGTH < 50 ? "command" : "text"
        text = $0
        next
    }
                        { add($0) }
    END                 { flush() }'
