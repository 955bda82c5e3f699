#!/usr/bin/python3
"""Criteo text -> the arrays that train_torch.py trains on, transformed as psworker does it (worker/data/line_parser.h).

    tests/bench/criteo_rows.py LOG.tsv N_TRAIN ROWS.npz

numeric [n][13] float32: log1p(max(x, 0)), 0 where it is missing; ids [n][26] int64: a token's place among all columns' tokens in the
order of their appearance; labels [n] float32; n_train; n_ids [26], the tokens of each column.
"""
import math
import sys

N_NUMERIC, N_CATEGORICAL = 13, 26

try:
    import numpy as np
except ImportError as missing:
    sys.exit(f"criteo_rows.py: {missing}: apt-get install python3-numpy")


def numeric(token):
    return math.log1p(max(float(token), 0)) if token else 0.0


def main():
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} LOG.tsv N_TRAIN ROWS.npz")
    with open(sys.argv[1]) as log:
        rows = [line.rstrip("\n").split("\t") for line in log]
    ids, n_ids = np.empty((len(rows), N_CATEGORICAL), np.int64), []
    for i in range(N_CATEGORICAL):
        places = {}
        first = sum(n_ids)
        ids[:, i] = [first + places.setdefault(row[1 + N_NUMERIC + i], len(places)) for row in rows]
        n_ids.append(len(places))
    np.savez(sys.argv[3], numeric=np.array([[numeric(x) for x in row[1:1 + N_NUMERIC]] for row in rows], np.float32), ids=ids,
             labels=np.array([float(row[0]) for row in rows], np.float32), n_train=int(sys.argv[2]), n_ids=n_ids)


main()
