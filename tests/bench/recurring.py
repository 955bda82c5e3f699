#!/usr/bin/python3
"""What an exact cache of rows could save the workers of a lock-step job: an upper bound, from the log alone.

    tests/bench/recurring.py LOG.tsv

A worker's copy of a row is still the servers' if the worker pulled it, and nobody else has pushed to it since: its own pushes it could
apply itself. In a step each worker takes the next batch; all rows of a batch are pulled, and then pushed to. Prints, for some batches and numbers
of workers, which share of the rows of all pulls was pulled by that worker before, and which share it would still hold exactly.
"""
import sys

FIRST_CATEGORICAL = 14  # of Criteo text: the label and 13 numbers stand before
BATCHES, WORKERS = (128, 512, 2048), (1, 2, 4, 8)


def batches_of(rows, n):
    """The unique keys of each batch of n rows."""
    return [{key for row in rows[i:i + n] for key in row} for i in range(0, len(rows) - n + 1, n)]


def shares(batches, n_workers):
    seen = [set() for _ in range(n_workers)]
    holder = {}  # key -> the only worker whose copy is exact
    asked = again = exact = 0
    for first in range(0, len(batches) - n_workers + 1, n_workers):
        step = batches[first:first + n_workers]
        for worker, keys in enumerate(step):
            asked += len(keys)
            again += len(keys & seen[worker])
            exact += sum(holder.get(key) == worker for key in keys)
            seen[worker] |= keys
        touched = set()
        for worker, keys in enumerate(step):
            holder.update((key, None if key in touched else worker) for key in keys)
            touched |= keys
    return again / asked, exact / asked


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} LOG.tsv")
    with open(sys.argv[1]) as log:
        rows = [list(enumerate(line.rstrip("\n").split("\t")[FIRST_CATEGORICAL:])) for line in log]
    print("| batch | workers | pulled by it before | and still exact |\n| --- | --- | --- | --- |")
    for n in BATCHES:
        batches = batches_of(rows, n)
        for n_workers in WORKERS:
            again, exact = shares(batches, n_workers)
            print(f"| {n:,} | {n_workers} | {again:.1%} | {exact:.1%} |")


main()
