#!/bin/sh
# Writes reference.md to stdout from what the programs in folder $1 print. `make docs` puts it in its place.
set -eu
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
version=$("$bin/psd" --version | sed 's/.* //')

# $1: program. Its usage, text, commands and settings as Markdown, in lines of at most 120 characters.
program() {
    printf '\n## %s\n' "$1"
    ./help.sh "$bin/$1" | awk -F'\t' '
        function wrapped(text, first, rest,    words, n, i, line) {
            n = split(text, words, " ")
            line = first
            for (i = 1; i <= n; i++) {
                if (length(line) + 1 + length(words[i]) > 120 && line != rest) { print line; line = rest }
                line = line (line == "" || line ~ / $/ ? "" : " ") words[i]
            }
            print line
        }
        function between() { if (last != $1) print ""; last = $1 }
        $1 == "usage"   { between(); print "```text"; gsub(/, or /, "\n"); gsub(/ \| psbench/, "\npsbench"); print; print "```"; next }
        $1 == "text"    { print ""; wrapped($2, "", ""); last = $1; next }
        $1 == "command" { between(); wrapped("`" $2 "`: " $3, "- ", "  "); next }
        $1 == "group"   { printf "\n### %s: %s\n", name, $2; last = $1; next }
        $1 == "option"  {
            between()
            wrapped("`" $2 "`" ($3 == "" ? "" : ", default `" $3 "`") ": " $4, "- ", "  ")
        }' name="$1" | sed 's/^usage\t//'
}

cat <<END
# Reference

The commands, settings and exit codes of version $version. \`make docs\` writes this page from what the programs print;
a test compares the two. The man pages psd(1), psworker(1), psctl(1), psbench(1), psd.conf(5), psworker.conf(5) and
psd-concepts(7) say the same.

## Settings

Every setting has the same name on the command line (\`--lease 30s\`) and in a file (\`lease = 30s\`). \`--config FILE\` reads
a file; a setting on the command line wins over the file. \`--print-config\` writes all settings with their comments as
such a file. \`--check\` reads all settings, reports the first mistake with its file and line, and stops. psworker also
checks that the data files exist, have the columns of the settings, and yield a first batch.

| value | is written as |
| --- | --- |
| BYTES | a whole number, or one with K, M, G or T (powers of 1,024): \`512K\`, \`64M\`, \`2G\` |
| TIME | a whole number with its unit: \`250ms\`, \`30s\`, \`5m\`, \`1h\` |
| switch | \`--zstd\` or \`--zstd=no\`; in a file \`yes\` or \`no\` |
| list | values with commas; the setting may also be given several times |
| items | the setting may be given several times; in a file also as lines behind [field COLUMN], one an option |

A file has \`name = value\` lines. A line that begins with \`#\` or \`;\` is a comment; there are no comments behind a value.
Headings in brackets are for readers only. An unknown name is an error.

## Exit codes

| code | psd, psctl, psbench | psworker |
| --- | --- | --- |
| 0 | success; psd: SIGTERM or SIGINT, and the last checkpoint is written | success; also after SIGTERM or SIGINT |
| 1 | failure; the last line on stderr names the reason | the same |
| 2 | misuse: a wrong option, setting or argument | misuse; tables, state or workers of other settings |
| 3 | psd: replaced by its standby, which it follows once it is started again | done, but workers or rows are lost |
| 128 + N | | signal N came twice, or before the training began |

The result line of \`psworker --json\` has \`"stopped_early":true\` after a signal. After a failure the last line is
\`{"event":"failure","error":"..."}\`. With exit code 2 the last line names the difference, with 3 the loss, or that it is
not known; \`--allow-lost-workers\` makes that 0. systemd restarts none of these, but psd after its 3.
END
program psd
program psworker
program psctl
[ ! -x "$bin/psbench" ] || program psbench
