"""Field offsets and lengths of CUPTI's activity records, from the headers of CUPTI 12.0 to 13.5.

The fields read here have the same offsets in all versions; lengths grow with fields added at the end.
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
    """Layout of a kind of record.

    Args:
        fields: NumPy type and offset in bytes, by column of nsys's table if it has one.
        lengths: `(first CUPTI version, length in bytes)`, oldest first.
    """

    fields: dict[str, tuple[str, int]]
    lengths: tuple[tuple[int, int], ...]

    def length(self, version: int) -> int:
        """Length of a record in bytes."""
        return max((first, length) for first, length in self.lengths if first <= version)[1]


def _layout(fields: str, *lengths: tuple[int, int]) -> Layout:
    """Parse words of `TYPE@OFFSET:NAME`."""
    parsed = {}
    for word in fields.split():
        place, name = word.split(":")
        type_name, offset = place.split("@")
        parsed[name] = (f"<{type_name}", int(offset))
    return Layout(parsed, lengths)


_OPERATION = "u8@16:start u8@24:end"

_API = _layout(
    "u4@4:cbid u8@8:start u8@16:end u4@28:thread u4@32:correlationId u4@36:returnValue",
    (_OLDEST, 40),
)

LAYOUTS = {
    cupti.KIND_CONCURRENT_KERNEL: _layout(
        f"u2@6:registersPerThread {_OPERATION} u4@40:deviceId u4@44:contextId u4@48:streamId "
        "i4@52:gridX i4@56:gridY i4@60:gridZ i4@64:blockX i4@68:blockY i4@72:blockZ "
        "i4@76:staticSharedMemory i4@80:dynamicSharedMemory u4@84:localMemoryPerThread u4@92:correlationId "
        "i8@96:gridId u8@104:name u1@136:launchType u4@140:sharedMemoryExecuted u8@144:graphNodeId "
        "u8@192:localMemoryTotal",
        (_OLDEST, 208),
        (130000, 216),
        (130100, 224),
        (130300, 232),
        (130400, 248),
    ),
    cupti.KIND_MEMCPY: _layout(
        f"u1@4:copyKind u1@5:srcKind u1@6:dstKind u8@8:bytes {_OPERATION} "
        "u4@32:deviceId u4@36:contextId u4@40:streamId u4@44:correlationId u8@64:graphNodeId",
        (_OLDEST, 88),
        (26, 96),
        (130400, 112),
    ),
    cupti.KIND_MEMCPY_PEER: _layout(
        f"u1@4:copyKind u1@5:srcKind u1@6:dstKind u8@8:bytes {_OPERATION} "
        "u4@32:deviceId u4@36:contextId u4@40:streamId u4@44:srcDeviceId u4@48:srcContextId "
        "u4@52:dstDeviceId u4@56:dstContextId u4@60:correlationId u8@72:graphNodeId",
        (_OLDEST, 96),
    ),
    cupti.KIND_MEMSET: _layout(
        f"u4@4:value u8@8:bytes {_OPERATION} u4@32:deviceId u4@36:contextId u4@40:streamId u4@44:correlationId "
        "u2@50:memKind u8@64:graphNodeId",
        (_OLDEST, 88),
        (130400, 104),
    ),
    cupti.KIND_GRAPH_TRACE: _layout(
        "u4@4:correlationId u8@8:start u8@16:end u4@24:deviceId u4@28:graphId u4@32:contextId u4@36:streamId",
        (_OLDEST, 48),
        (21, 56),
    ),
    cupti.KIND_RUNTIME: _API,
    cupti.KIND_DRIVER: _API,
    cupti.KIND_MARKER: _layout(
        "u4@4:flags u8@8:timestamp u4@16:id u4@20:object_kind u4@28:thread u8@40:name u8@48:domain",
        (_OLDEST, 56),
    ),
    cupti.KIND_SYNCHRONIZATION: _layout(
        "u4@4:syncType u8@8:start u8@16:end u4@24:correlationId u4@28:contextId u4@32:streamId u4@36:eventId",
        (_OLDEST, 40),
        (26, 56),
    ),
    cupti.KIND_MARKER_DATA: _layout(
        "u4@4:flags u4@8:id u4@12:payload_kind i8@16:payload u4@24:color u4@28:category",
        (_OLDEST, 32),
        (130000, 40),
    ),
}


def is_known(version: int) -> bool:
    """Whether the layouts of a `cuptiGetVersion` are known: 12.0 to 12.9, 13.0 to 13.5."""
    return _OLDEST <= version <= _NEWEST_OF_12 or _OLDEST_OF_13 <= version <= _NEWEST


def record_lengths(version: int) -> dict[int, int]:
    """Length in bytes of each kind of record."""
    return {kind: layout.length(version) for kind, layout in LAYOUTS.items()}
