"""Two ranks of one program for those of this corpus that need them: rank 0 starts rank 1 as `torchrun` would."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed


@contextmanager
def joined(first: int = 0) -> Iterator[int]:
    """The number of this rank, in a group of two over gloo.

    Args:
        first: the rank of the process that was launched.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine without a network has no name to look up
    with tempfile.TemporaryDirectory() as folder:
        other = None
        if "RANK" not in os.environ:
            os.environ |= {"RANK": str(first), "WORLD_SIZE": "2", "RANKS_MEET_AT": str(Path(folder, "store"))}
            other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(1 - first)})
        rank = int(os.environ["RANK"])
        store = torch.distributed.FileStore(os.environ["RANKS_MEET_AT"], 2)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
        yield rank
        torch.distributed.destroy_process_group()
        if other is not None and other.wait():
            sys.exit(other.returncode)
