#!/bin/sh
# What the mutants of the simulation change stands in the product: else they would test nothing.
cd "$(dirname "$0")/../.." || exit 2
tests/sim/mutants.py --texts
