"""How messages name machines and GPUs."""

from __future__ import annotations


def node_name(rank: int, host: str | None) -> str:
    """`node 1 (host)`."""
    return f"node {rank}" if host is None else f"node {rank} ({host})"


def gpu_name(index: int | None, uuid: str, node: str | None = None) -> str:
    """`GPU 0`, of several machines `GPU 0 of node 1 (host)`; by UUID a MIG instance, or one without a known index."""
    name = f"GPU {uuid if index is None or uuid.startswith('MIG-') else index}"
    return name if node is None else f"{name} of {node}"
