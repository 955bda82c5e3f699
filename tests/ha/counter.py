"""A worker that counts: each push adds 1 to some rows, and is one step. At the end the rows say how often it was applied.

    counter.py URL MODE

Prints a line when it has joined, another for each line on its standard input ("go": how many pushes are acknowledged, and the longest
that one has taken, in ms, since the last line; "by T": how many were at T, of this machine's monotonic clock), and at "stop" what the rows
hold.
"""

import bisect
import json
import select
import sys
import time

import numpy as np

import psd

KEYS = np.arange(64)


def main(url, mode):
    more = {"mode": "ssp", "staleness": 4} if mode == "ssp" else {"mode": mode}
    with psd.connect(url, job=f"count-{mode}", push_timeout="60s", **more) as client:
        table = client.table("sums", dim=2, optimizer="sgd", lr=1.0, init="zero")
        print(json.dumps({"joined": True}), flush=True)
        n, longest, acknowledged = 0, 0.0, []
        while True:
            began = time.monotonic()
            table.push(KEYS, -np.ones((len(KEYS), 2), np.float32), tick=True)
            client.flush()
            acknowledged.append(time.monotonic())
            longest = max(longest, acknowledged[-1] - began)
            n += 1
            if not select.select([sys.stdin], [], [], 0)[0]:
                continue
            asked = sys.stdin.readline().strip() or "stop"
            if asked == "go":
                print(json.dumps({"pushed": n, "longest_ms": longest * 1e3}), flush=True)
                longest = 0.0
                continue
            if asked.startswith("by "):
                print(json.dumps({"pushed": bisect.bisect(acknowledged, float(asked[3:]))}), flush=True)
                continue
            rows = table.pull(KEYS)
            print(json.dumps({"pushed": n, "lowest": float(rows.min()), "highest": float(rows.max()),
                              "lost": client.stats()["pushes_lost"]}), flush=True)
            return


main(*sys.argv[1:])
