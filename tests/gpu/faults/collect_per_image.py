"""`gc.collect()` after each image: the collector walks the whole heap, which holds a large vocabulary.

Mikubill/sd-webui-controlnet#1462: the call blocked for 200 ms each time; sgl-project/sglang#9241 for long pauses.
"""

from __future__ import annotations

import argparse
import gc

import torch

from perfharness import PerfRecorder

BATCHES = 24
WORDS = {"cuda": 200_000, "cpu": 5_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    vocabulary = [{"word": f"w{index}", "pieces": [index, index + 1]} for index in range(WORDS[args.device])]
    side = 4096 if args.device == "cuda" else 16
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("collect_per_image")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("model"):
                    hidden = weight * len(vocabulary[index]["pieces"])
                    for _ in range(30):
                        hidden = hidden @ weight * 0.01
                with perf.range("results"):
                    hidden.amax().item()
                with perf.range("release"):
                    del hidden
                    if not args.mended:
                        gc.collect()  # fault
    perf.finalize()


if __name__ == "__main__":
    main()
