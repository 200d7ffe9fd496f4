"""Decode CUPTI's buffers into columns by kind of record, after the script."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfharness.tracer import callbacks
from perfharness.tracer.cupti import Cupti
from perfharness.tracer.layouts import LAYOUTS, record_lengths

Columns = dict[str, NDArray[Any]]

RECORDS_CHECKED = 4096
"""Number of records per run whose lengths are checked with CUPTI."""

_WORD_BYTES = 8


class LayoutError(Exception):
    """The records differ from `layouts`."""


def decode(cupti: Cupti, buffers: Iterable[tuple[int, int]]) -> dict[int, Columns]:
    """Return the columns of each kind of record, in buffer order."""
    lengths = record_lengths(cupti.version)
    parts: dict[int, list[Columns]] = {}
    for address, valid in buffers:
        if valid == 0:
            continue
        for kind, offsets in _offsets(cupti, address, valid, lengths).items():
            records = _gather(address, valid, offsets, lengths[kind])
            parts.setdefault(kind, []).append(
                {name: np.ascontiguousarray(records[name]) for name in LAYOUTS[kind].fields}
            )
    return {
        kind: {name: np.concatenate([part[name] for part in found]) for name in found[0]}
        for kind, found in parts.items()
    }


def check_lengths(cupti: Cupti, buffers: Iterable[tuple[int, int]]) -> None:
    """Check the lengths of the first records against `layouts`. Raises `LayoutError`."""
    lengths = record_lengths(cupti.version)
    left = RECORDS_CHECKED
    for address, valid in buffers:
        if valid == 0:
            continue
        previous: tuple[int, int] | None = None
        for record, kind in _walk(cupti, address, valid):
            if previous is not None and previous[1] in lengths and record - previous[0] != lengths[previous[1]]:
                raise LayoutError(
                    f"records of kind {previous[1]} are {record - previous[0]} bytes long in {cupti.path}, "
                    f"not {lengths[previous[1]]} as in CUPTI {cupti.version}"
                )
            previous = record, kind
            left -= 1
            if left == 0:
                return


def _walk(cupti: Cupti, address: int, valid: int) -> Iterable[tuple[int, int]]:
    """Yield `(address, kind)` of each record, found by CUPTI itself."""
    following = cupti.library.cuptiActivityGetNextRecord
    record = ctypes.c_void_p(None)
    while following(ctypes.c_void_p(address), ctypes.c_size_t(valid), ctypes.byref(record)) == 0 and record.value:
        yield record.value, ctypes.c_uint32.from_address(record.value).value


def _offsets(cupti: Cupti, address: int, valid: int, lengths: dict[int, int]) -> dict[int, list[int]]:
    """Offsets of the records in the buffer by kind, in 8-byte words."""
    kinds = callbacks.view(address, valid - valid % _WORD_BYTES).cast("I")[::2]
    word_lengths = {kind: length // _WORD_BYTES for kind, length in lengths.items()}
    found: dict[int, list[int]] = {kind: [] for kind in lengths}
    kind_list = kinds.tolist()
    at, end = 0, len(kind_list)
    try:
        while at < end:
            kind = kind_list[at]
            found[kind].append(at)
            at += word_lengths[kind]
    except KeyError:
        # A kind that the script enabled: only CUPTI knows its length.
        found = {kind: [] for kind in lengths}
        for record, kind in _walk(cupti, address, valid):
            if kind in found:
                found[kind].append((record - address) // _WORD_BYTES)
    return {kind: offsets for kind, offsets in found.items() if offsets}


def _gather(address: int, valid: int, offsets: list[int], length: int) -> NDArray[Any]:
    """Records at these offsets, as a structured array."""
    words = np.frombuffer(callbacks.view(address, valid - valid % _WORD_BYTES), dtype=np.uint64)
    inside = np.arange(length // _WORD_BYTES)
    starts = np.asarray(offsets, dtype=np.int64)
    starts = starts[starts + len(inside) <= len(words)]
    gathered = words[starts[:, None] + inside]
    kind = int(gathered[0, 0] & 0xFFFFFFFF)
    fields = LAYOUTS[kind].fields
    names = list(fields)
    dtype = np.dtype(
        {
            "names": names,
            "formats": [fields[name][0] for name in names],
            "offsets": [fields[name][1] for name in names],
            "itemsize": length,
        }
    )
    records: NDArray[Any] = gathered.view(dtype)[:, 0]
    return records
