"""A script that knows nothing of perfharness: it only uses nvtx, as many do already.

perfharness launch --config samples/plain_nvtx.toml -o out samples/plain_nvtx.py
"""

import argparse
import time

import nvtx

parser = argparse.ArgumentParser("plain_nvtx")
parser.add_argument("--batches", type=int, default=3, help="number of batches")
parser.add_argument("--stage-ms", type=float, default=20.0, help="milliseconds that each of the two stages sleeps")
args = parser.parse_args()

with nvtx.annotate("pipeline", color="green"):
    for i in range(args.batches):
        nvtx.push_range(f"batch_{i}")
        with nvtx.annotate("preprocess", color="blue"):
            time.sleep(args.stage_ms / 1e3)
        with nvtx.annotate("inference", color="red"):
            time.sleep(args.stage_ms / 1e3)
        nvtx.pop_range()
