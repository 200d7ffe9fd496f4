"""Offsets of the fields of CUPTI's activity records, and the length of a record of each kind, by CUPTI version.

Taken from the headers of CUPTI 12.0 to 13.5 with a compiler (offsetof, sizeof). The fields that are read here have the
same offsets in all of them; the length of a record changes, as fields are added at its end. No NumPy in here.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfharness.tracer import cupti

_OLDEST = 18
_NEWEST_OF_12 = 28
_OLDEST_OF_13 = 130000
_NEWEST = 130599


@dataclass(frozen=True)
class Layout:
    """One kind of record.

    Args:
        fields: NumPy type and offset in bytes, by column name.
        lengths: `(first CUPTI version, length in bytes)`, oldest first.
    """

    fields: dict[str, tuple[str, int]]
    lengths: tuple[tuple[int, int], ...]

    def length(self, version: int) -> int:
        """Length of one record, bytes."""
        return max((first, length) for first, length in self.lengths if first <= version)[1]


_API = Layout(
    {
        "kind": ("<u4", 0), "cbid": ("<u4", 4), "start": ("<u8", 8), "end": ("<u8", 16), "thread": ("<u4", 28),
        "correlation": ("<u4", 32), "return_value": ("<u4", 36),
    },
    ((_OLDEST, 40),),
)  # fmt: skip

LAYOUTS = {
    cupti.KIND_CONCURRENT_KERNEL: Layout(
        {
            "registers": ("<u2", 6), "start": ("<u8", 16), "end": ("<u8", 24), "device": ("<u4", 40),
            "context": ("<u4", 44), "stream": ("<u4", 48), "grid_x": ("<i4", 52), "grid_y": ("<i4", 56),
            "grid_z": ("<i4", 60), "block_x": ("<i4", 64), "block_y": ("<i4", 68), "block_z": ("<i4", 72),
            "static_shared": ("<i4", 76), "dynamic_shared": ("<i4", 80), "local_per_thread": ("<u4", 84),
            "correlation": ("<u4", 92), "grid_id": ("<i8", 96), "name": ("<u8", 104), "launch_type": ("<u1", 136),
            "shared_executed": ("<u4", 140), "graph_node": ("<u8", 144), "local_total": ("<u8", 192),
        },
        ((_OLDEST, 208), (130000, 216), (130100, 224), (130300, 232), (130400, 248)),
    ),
    cupti.KIND_MEMCPY: Layout(
        {
            "copy_kind": ("<u1", 4), "source_kind": ("<u1", 5), "target_kind": ("<u1", 6), "bytes": ("<u8", 8),
            "start": ("<u8", 16), "end": ("<u8", 24), "device": ("<u4", 32), "context": ("<u4", 36),
            "stream": ("<u4", 40), "correlation": ("<u4", 44), "graph_node": ("<u8", 64),
        },
        ((_OLDEST, 88), (26, 96), (130400, 112)),
    ),
    cupti.KIND_MEMCPY_PEER: Layout(
        {
            "copy_kind": ("<u1", 4), "source_kind": ("<u1", 5), "target_kind": ("<u1", 6), "bytes": ("<u8", 8),
            "start": ("<u8", 16), "end": ("<u8", 24), "device": ("<u4", 32), "context": ("<u4", 36),
            "stream": ("<u4", 40), "source_device": ("<u4", 44), "source_context": ("<u4", 48),
            "target_device": ("<u4", 52), "target_context": ("<u4", 56), "correlation": ("<u4", 60),
            "graph_node": ("<u8", 72),
        },
        ((_OLDEST, 96),),
    ),
    cupti.KIND_MEMSET: Layout(
        {
            "value": ("<u4", 4), "bytes": ("<u8", 8), "start": ("<u8", 16), "end": ("<u8", 24), "device": ("<u4", 32),
            "context": ("<u4", 36), "stream": ("<u4", 40), "correlation": ("<u4", 44), "memory_kind": ("<u2", 50),
            "graph_node": ("<u8", 64),
        },
        ((_OLDEST, 88), (130400, 104)),
    ),
    cupti.KIND_GRAPH_TRACE: Layout(
        {
            "correlation": ("<u4", 4), "start": ("<u8", 8), "end": ("<u8", 16), "device": ("<u4", 24),
            "graph": ("<u4", 28), "context": ("<u4", 32), "stream": ("<u4", 36),
        },
        ((_OLDEST, 48), (21, 56)),
    ),
    cupti.KIND_RUNTIME: _API,
    cupti.KIND_DRIVER: _API,
    cupti.KIND_MARKER: Layout(
        {
            "flags": ("<u4", 4), "timestamp": ("<u8", 8), "id": ("<u4", 16), "object_kind": ("<u4", 20),
            "thread": ("<u4", 28), "name": ("<u8", 40), "domain": ("<u8", 48),
        },
        ((_OLDEST, 56),),
    ),
    cupti.KIND_SYNCHRONIZATION: Layout(
        {
            "type": ("<u4", 4), "start": ("<u8", 8), "end": ("<u8", 16), "correlation": ("<u4", 24),
            "context": ("<u4", 28), "stream": ("<u4", 32), "event": ("<u4", 36),
        },
        ((_OLDEST, 40), (26, 56)),
    ),
    cupti.KIND_MARKER_DATA: Layout(
        {
            "flags": ("<u4", 4), "id": ("<u4", 8), "payload_kind": ("<u4", 12), "payload": ("<i8", 16),
            "color": ("<u4", 24), "category": ("<u4", 28),
        },
        ((_OLDEST, 32), (130000, 40)),
    ),
}  # fmt: skip


def is_known(version: int) -> bool:
    """Whether the layouts of that version (`cuptiGetVersion`) are known: 12.0 to 12.9, 13.0 to 13.5."""
    return _OLDEST <= version <= _NEWEST_OF_12 or _OLDEST_OF_13 <= version <= _NEWEST


def record_lengths(version: int) -> dict[int, int]:
    """Length in bytes of a record of each kind, in that version."""
    return {kind: layout.length(version) for kind, layout in LAYOUTS.items()}
