#!/bin/sh
# Writes the man pages into $2/man1, man3, man5 and man7. $1: the folder of the programs. A page is a file of deploy/man; a line in it
# such as "@settings psd@" is replaced by what that program prints, so that a page repeats nothing by hand:
#   @version@ (anywhere), @usage PROGRAM@, @text PROGRAM@, @options PROGRAM@, @settings PROGRAM@, @examples PROGRAM@, @markdown FILE@, @header FILE@
# Each function of libpsd has a page of its name that leads to libpsd(3).
# Pages of a program that is not in $1 are left out.
set -eu
bin=$(cd "$1" && pwd)
to=$2
cd "$(dirname "$0")"
version=$("$bin/psd" --version | sed 's/.* //')

# $1: part, $2: program
print_part() {
    ./help.sh "$bin/$2" | awk -F'\t' -v part="$1" '
        # Nothing of the text may look like roff.
        function plain(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.'"'"']/, "\\\\\\&&", text); return text }
        part == "usage" && $1 == "usage" {
            gsub(/, or /, "\n.br\n", $2); gsub(/ \| psbench/, "\n.br\npsbench", $2)
            print plain($2)
            next
        }
        part == "text" && $1 == "text"    { printf ".PP\n%s\n", plain($2) }
        part == "text" && $1 == "command" { printf ".TP\n.B %s\n%s\n", plain($2), plain($3) }
        part == "usage" || part == "text" { next }
        # A file cannot name these.
        part == "settings" && ($2 ~ /^--(config FILE|check|print-config|help|version)$/) { next }
        part == "settings" && $1 == "group" && $2 == "always" { next }
        $1 == "group"  { printf ".SS %s\n", plain(part == "settings" ? "[" $2 "]" : $2) }
        $1 == "option" {
            if (part == "settings") { sub(/^--/, "", $2); if (!sub(/ /, " = ", $2)) $2 = $2 " = yes|no" }
            printf ".TP\n.B %s\n", plain($2)
            print plain($4 ($3 == "" ? "" : " [" $3 "]"))
        }'
}

# The examples of each command of a program that has "help COMMAND".
print_examples() {
    ./help.sh "$bin/$1" | awk -F'\t' '$1 == "command" { sub(/ .*/, "", $2); print $2 }' | while read -r command; do
        "$bin/$1" help "$command" | awk '
            function plain(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); return text }
            !is_on     { is_on = $0 == "examples:"; next }
            /^      /  { sub(/^ +/, ""); print plain(toupper(substr($0, 1, 1)) substr($0, 2)) "."; next }
                       { sub(/^ +/, ""); printf ".TP\n.B %s\n", plain($0) }'
    done
}

# The Markdown of deploy/docs: headings, paragraphs, lists, tables of two columns or more, code.
print_markdown() {
    awk '
        function plain(text) {
            gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text)
            gsub(/!?\[/, "", text); gsub(/\]\([^)]*\)/, "", text)
            gsub(/\*\*/, "", text)
            while (match(text, /`[^`]*`/))
                text = substr(text, 1, RSTART - 1) "\\fB" substr(text, RSTART + 1, RLENGTH - 2) "\\fR" substr(text, RSTART + RLENGTH)
            sub(/^[.'"'"']/, "\\\\\\&&", text)
            return text
        }
        function raw(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.'"'"']/, "\\\\\\&&", text); return text }
        /^```/        { is_code = !is_code; print is_code ? ".PP\n.nf\n.RS 4" : ".RE\n.fi"; next }
        is_code       { print raw($0); next }
        /^<!--/       { next }
        /^# /         { next }
        /^## /        { printf ".SH %s\n", toupper(plain(substr($0, 4))); is_open = 1; next }
        /^### /       { printf ".SS %s\n", plain(substr($0, 5)); is_open = 1; next }
        /^\| ?---/    { next }
        /^\| /        {
            n = split($0, cells, / ?\| ?/)
            if (!is_table) { is_table = 1; next } # its head
            printf ".TP\n.B %s\n", plain(cells[2])
            line = ""
            for (i = 3; i < n; i++) if (cells[i] != "") line = line (line == "" ? "" : "; ") cells[i]
            print plain(line)
            next
        }
        is_table      { is_table = 0 }
        /^$/          { is_open = 0; next }
        /^- /         { printf ".IP \\(bu 2\n%s\n", plain(substr($0, 3)); is_open = 1; next }
        {
            sub(/^ +/, "")
            if (!is_open) print ".PP"
            is_open = 1
            print plain($0)
        }' "$1"
}

# A C header: its opening comment, then what it declares, each with the comment before it.
print_header() {
    awk '
        function raw(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.'"'"']/, "\\\\\\&&", text); return text }
        function flush(    i) {
            if (n_code) {
                print ".PP\n.nf"
                for (i = 1; i <= n_code; i++) print "\\fB" raw(code[i]) "\\fR"
                print ".fi"
            }
            if (n_text) {
                print n_code ? ".RS 4\n.nf" : ".PP\n.nf"
                for (i = 1; i <= n_text; i++) print raw(text[i])
                print n_code ? ".fi\n.RE" : ".fi"
            }
            n_code = n_text = 0
        }
        /^#|^extern "C"|^}$|clang-format o/ { next }
        /^\/\* ---- .* ---- \*\/$/ { flush(); sub(/^\/\* ---- /, ""); sub(/ ---- \*\/$/, ""); print ".SS " raw($0); next }
        /^\/\*/ { flush(); is_text = 1 }
        is_text {
            line = $0
            is_last = sub(/ *\*\/$/, "", line)
            sub(/^(\/\*| \*) ?/, "", line)
            if (line != "" || (n_text && !is_last)) text[++n_text] = line
            if (is_last) is_text = 0
            next
        }
        /^$/ { flush(); next }
        { code[++n_code] = $0 }
        END { flush() }' "$1"
}

for source in man/*.[1357]; do
    page=$(basename "$source")
    section=${page##*.}
    program=${page%.*}
    case $program in *.conf | psd-concepts | libpsd) ;; *) [ -x "$bin/$program" ] || continue ;; esac
    mkdir -p "$to/man$section"
    while IFS= read -r line; do
        case $line in
        "@header "*) file=${line#@header } && print_header "${file%@}" ;;
        "@examples "*) file=${line#@examples } && print_examples "${file%@}" ;;
        "@markdown "*) file=${line#@markdown } && print_markdown "${file%@}" ;;
        "@"*"@") words=${line%@} && print_part "$(echo "${words#@}" | cut -d' ' -f1)" "${words#* }" ;;
        *) printf '%s\n' "$line" ;;
        esac
    done <"$source" | sed "s/@version@/$version/" >"$to/man$section/$page"
    chmod 644 "$to/man$section/$page"
done
sed -n 's/^ *\(psd_[a-z0-9_]*\);$/\1/p' ../worker/libpsd/libpsd.map | while read -r name; do
    echo '.so man3/libpsd.3' >"$to/man3/$name.3"
    chmod 644 "$to/man3/$name.3"
done
