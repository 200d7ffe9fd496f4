"""`python -m perfharness.telemetry OPTIONS`: the sampler (see `sampler.py`)."""

import sys

from perfharness.telemetry.sampler import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
