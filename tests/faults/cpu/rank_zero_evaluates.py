"""Rank 0 alone evaluates after a step, and rank 1, which starts it, waits for it. Mended: each does its half."""

import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed

from tests.faults.frame import MENDED, batches, count, stage

EXAMPLES = 160
SHARES = [range(r, EXAMPLES, 2) if MENDED else range(0 if r else EXAMPLES) for r in (0, 1)]


def evaluate():
    for example in SHARES[rank]:
        (weight * float(example)).softmax(dim=-1).sum().item()
    count(len(SHARES[0]) - len(SHARES[1]))


torch.set_num_threads(1)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine without a network has no name to look up
other = None
if "RANK" not in os.environ:
    os.environ |= {"RANK": "1", "WORLD_SIZE": "2", "RANKS_MEET_AT": tempfile.mktemp()}
    other = subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": "0"})
rank = int(os.environ["RANK"])
store = torch.distributed.FileStore(os.environ["RANKS_MEET_AT"], 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
weight = torch.randn(200, 200, generator=torch.Generator().manual_seed(1))
with torch.inference_mode():
    for _ in batches(20):
        with stage("step"):
            part = weight @ weight
        with stage("evaluate"):
            evaluate()
        with stage("reduce"), stage("all_reduce", category="communication"):
            torch.distributed.all_reduce(part)
torch.distributed.destroy_process_group()
if other:
    other.wait()
