"""`python run_sampler.py DESCRIPTOR INTERVAL_NS SHARE`: the sampler of the host probe; see `sampler`."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    if os.fork():  # the sampler is no child of the process, which may wait for all its children
        os._exit(0)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from perfharness.host_probe.sampler import main

    main()
