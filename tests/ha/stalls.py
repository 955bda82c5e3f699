"""How long pushes have waited in a fault: printed, and held to a bound where rounds are asked for by PS_HA_ROUNDS."""

import os
import statistics

LONGEST_MS = 2000
KILL_P50_MS, OTHER_P50_MS = 500, 1200


class Stalls:
    """The longest push of each round."""

    def __init__(self, what):
        self.what, self.rounds = what, []

    def add(self, round_ms):
        """Of one round: the longest push of each worker, once or more often."""
        self.rounds.append(max(round_ms))

    def check(self, p50_ms):
        """Without PS_HA_ROUNDS they are few, on a machine that runs other tests, too, and are printed alone."""
        p50, longest = statistics.median(self.rounds), max(self.rounds)
        said = f"{self.what} x {len(self.rounds)}: stall p50 {p50:.0f} ms, longest {longest:.0f} ms"
        print(said)
        if "PS_HA_ROUNDS" in os.environ:
            stalls = ", ".join(f"{stall:.0f}" for stall in self.rounds)
            print(stalls)
            assert p50 <= p50_ms, f"{said}; at most {p50_ms} ms are allowed for p50: {stalls}"
            assert longest < LONGEST_MS, f"{said}; less than {LONGEST_MS} ms are allowed for each: {stalls}"
