"""`python run_sampler.py DESCRIPTOR`: the sampler of the host probe; see `sampler`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from perfharness.host_probe.sampler import main

    main()
