"""Numbers of kinds, as nsys itself lists them in its traces, and lengths of CUPTI's records by version."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from enum import IntEnum
from pathlib import Path

import pytest

from perfharness.model.trace import CopyKind, MemoryKind
from perfharness.tracer.layouts import is_known, record_lengths
from perfharness.tracer.trace_file import ENUMERATIONS

NSYS = Path(__file__).parents[2] / "golden" / "traces" / "pipeline.sqlite"


def listed(table: str) -> dict[int, tuple[str, str]]:
    """Name and label by number."""
    with closing(sqlite3.connect(f"file:{NSYS}?mode=ro", uri=True)) as connection:
        return {row[0]: row[1:] for row in connection.execute(f"SELECT id, name, label FROM {table}")}


@pytest.mark.parametrize(("kinds", "table"), [(CopyKind, "ENUM_CUDA_MEMCPY_OPER"), (MemoryKind, "ENUM_CUDA_MEM_KIND")])
def test_copies_and_memory_are_numbered_as_by_nsys(kinds: type[IntEnum], table: str) -> None:
    assert {kind.value: kind.name for kind in kinds} == {
        number: re.sub(r"\W", "_", label).upper() for number, (_, label) in listed(table).items()
    }


@pytest.mark.parametrize("table", ENUMERATIONS)
def test_the_embedded_tracer_lists_them_as_nsys_does(table: str) -> None:
    assert ENUMERATIONS[table].items() <= listed(table).items()


KINDS = (10, 1, 22, 2, 51, 5, 4, 12, 38, 13)
"""CUpti_ActivityKind of kernels, copies, peer copies, memsets, graphs, runtime, driver, markers, waits, marker data."""


@pytest.mark.parametrize(
    ("versions", "lengths"),
    [
        ((18, 20), (208, 88, 96, 88, 48, 40, 40, 56, 40, 32)),
        ((21, 25), (208, 88, 96, 88, 56, 40, 40, 56, 40, 32)),
        ((26, 28), (208, 96, 96, 88, 56, 40, 40, 56, 56, 32)),
        ((130000, 130099), (216, 96, 96, 88, 56, 40, 40, 56, 56, 40)),
        ((130100, 130299), (224, 96, 96, 88, 56, 40, 40, 56, 56, 40)),
        ((130300, 130399), (232, 96, 96, 88, 56, 40, 40, 56, 56, 40)),
        ((130400, 130599), (248, 112, 96, 104, 56, 40, 40, 56, 56, 40)),
        ((0, 17), None),
        ((29, 129999), None),
        ((130600, 140000), None),
    ],
)
def test_records_have_the_lengths_of_cuptis_headers(versions: tuple[int, int], lengths: tuple[int, ...] | None) -> None:
    """`sizeof` of the first and last version with this header; None: the tracer does not know the versions."""
    for version in versions:
        assert is_known(version) == (lengths is not None)
        assert lengths is None or record_lengths(version) == dict(zip(KINDS, lengths, strict=True))
