"""One rank has more work on the host, and the other waits in each all-reduce. Mended: half of it for both."""

import hashlib
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed

from tests.faults.frame import DEVICE, MENDED, batches, pick, stage

SIDE = pick(2048, 16)
WORK = bytes(pick(60_000_000, 1000))  # about 40 ms of a batch


def join():
    """The ranks of one launch meet at a file, named after the folder that their output folders lie in."""
    ranks = 2 if "PERFHARNESS_PROCESS_INDEX" in os.environ else 1
    os.environ["RANK"] = str(rank)  # by which results of both are compared
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine without a network has no name to look up
    place = str(Path(os.environ.get("PERFHARNESS_OUTPUT_DIR", str(os.getpid()))).parent)
    name = "slow_rank_" + hashlib.sha256(place.encode()).hexdigest()[:16]
    store = torch.distributed.FileStore(str(Path(tempfile.gettempdir(), name)), ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


rank = int(os.environ.get("PERFHARNESS_PROCESS_INDEX", "0"))
join()
work = WORK[: len(WORK) // 2] if MENDED else b"" if rank else WORK
weight = torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16) / SIDE**0.5
with torch.inference_mode():
    for _ in batches(30):
        with stage("prepare"):
            hashlib.sha256(work).digest()
        with stage("model"):
            hidden = weight
            for _ in range(10):
                hidden = hidden @ weight
            total = hidden.amax().float().cpu()
        with stage("reduce"), stage("all_reduce", category="communication"):
            torch.distributed.all_reduce(total)  # fault
torch.distributed.destroy_process_group()
