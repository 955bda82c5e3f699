#!/bin/sh
# Writes the sample configurations from the programs in folder $1 into folder $2 (default: this one). Nobody edits a
# sample: the programs print it, and a test holds what is in the tree against what they print.
set -eu
bin=$1
to=${2:-$(dirname "$0")}
"$bin/psd" --listen 127.0.0.1:7070 --http 127.0.0.1:7071 --data-dir /var/lib/psd --checkpoint-every 10m \
    --print-config >"$to/psd.conf"
"$bin/psworker" train --job criteo --format criteo --data /srv/criteo/train --valid /srv/criteo/valid --shuffle 65536 \
    --servers 127.0.0.1:7070 --mode ssp --staleness 4 --push-codec int8 --zstd --json criteo.json \
    --print-config >"$to/psworker.conf"
