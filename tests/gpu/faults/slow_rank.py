"""One rank has more work than the other, which waits for it in each all-reduce.

NVIDIA/nccl#893: the collective of every GPU waits for that of the slowest. Two processes, by gloo.

perfharness launch -np 2 tests/gpu/faults/slow_rank.py
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 30
PRODUCTS = 10
SHARD_BYTES = 60_000_000
"""Of host work in a batch, about 40 ms: that of one rank; mended: of both in equal parts."""


def join(rank: int, ranks: int) -> None:
    """The ranks of one launch meet at a file, named after the folder that their output folders lie in."""
    os.environ["RANK"] = str(rank)  # by which results of both are compared
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine without a network has no name to look up
    place = str(Path(os.environ.get("PERFHARNESS_OUTPUT_DIR", str(os.getpid()))).parent)
    name = "slow_rank_" + hashlib.sha256(place.encode()).hexdigest()[:16]
    store = torch.distributed.FileStore(str(Path(tempfile.gettempdir(), name)), ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def main() -> None:
    args = parse_options(__doc__)
    rank = int(os.environ.get("PERFHARNESS_PROCESS_INDEX", "0"))
    join(rank, 2 if "PERFHARNESS_PROCESS_INDEX" in os.environ else 1)
    work = bytes(SHARD_BYTES if args.device == "cuda" else 1000)
    if args.mended:
        work = work[: len(work) // 2]
    elif rank > 0:
        work = b""
    side = 2048 if args.device == "cuda" else 16
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16) / side**0.5

    perf = PerfRecorder("slow_rank")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("prepare"):
                    hashlib.sha256(work).digest()
                with perf.range("model"):
                    hidden = weight
                    for _ in range(PRODUCTS):
                        hidden = hidden @ weight
                    total = hidden.amax().float().cpu()
                with perf.range("reduce"), perf.range("all_reduce", category="communication"):
                    torch.distributed.all_reduce(total)  # fault
    perf.finalize()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
