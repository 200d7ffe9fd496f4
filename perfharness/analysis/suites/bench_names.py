"""Names and final states of cases, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perfharness.model.bench import BenchCase, CaseResult, Cell, MachineRecord
from perfharness.model.bench_suite import MergedRow

Key = TypeVar("Key")
Value = TypeVar("Value")


def device_text(machine: MachineRecord) -> str:
    """`2 x NVIDIA H200`; the CPU if no GPU was used."""
    count = Counter(machine.gpus)
    return ", ".join(f"{count[name]} x {name}" if count[name] > 1 else name for name in count) or machine.cpu or "?"


def short_backend(name: str) -> str:
    """`module:Class` as `Class`, `module:Class/mode/precision` as `Class/mode/precision`."""
    return name.rpartition(":")[2]


@dataclass(frozen=True)
class CaseNames:
    """Shortest distinct names for the cases of a suite. `long_backends`: backends whose short names clash."""

    with_model: bool = False
    with_device: bool = False
    with_gpu: bool = False
    long_backends: frozenset[str] = frozenset()

    @classmethod
    def of(cls, cases: Iterable[Cell], *, with_model: bool | None = None) -> CaseNames:
        """Names for all cases shown together; with the model if they have several or `with_model` is set."""
        known = list(cases)
        backends = {case.backend for case in known}
        short = [short_backend(name) for name in backends]
        return cls(
            with_model=len({case.model for case in known}) > 1 if with_model is None else with_model,
            with_device=len({case.device for case in known}) > 1,
            with_gpu=len({case.gpu for case in known if case.gpu}) > 1,
            long_backends=frozenset(name for name in backends if short.count(short_backend(name)) > 1),
        )

    def backend(self, case: Cell) -> str:
        """`torch/compile threads=2`: with named settings, and the device if the suite uses both."""
        name = case.backend if case.backend in self.long_backends else short_backend(case.backend)
        mode, device = f"{name}/{case.mode}" if case.mode else name, case.device if self.with_device else ""
        return " ".join(filter(None, (mode, device, case.variant)))

    def cell(self, case: Cell) -> str:
        """`torch/compile fp16 on H200`: with model and GPU if the suite has several."""
        model = case.model if self.with_model else None
        gpu = f"on {case.gpu}" if self.with_gpu and case.gpu else None
        return " ".join(filter(None, (model, self.backend(case), case.precision, gpu)))

    def case(self, case: BenchCase) -> str:
        """`torch/compile fp16, batch 64`."""
        return f"{self.cell(case)}, batch {case.batch_size}"

    def cells(self, cases: Iterable[BenchCase | MergedRow]) -> list[str]:
        """`torch/compile fp16, batch 1, 16`: one per cell, in order of appearance."""
        grouped = in_groups((self.cell(case), case.batch_size) for case in cases)
        return [f"{cell}, batch {', '.join(map(str, sorted(set(sizes))))}" for cell, sizes in grouped]


def in_groups(pairs: Iterable[tuple[Key, Value]]) -> list[tuple[Key, Sequence[Value]]]:
    """Group values by key; keys and values in order of appearance."""
    grouped: dict[Key, list[Value]] = {}
    for key, value in pairs:
        grouped.setdefault(key, []).append(value)
    return list(grouped.items())


def first_line(text: str) -> str:
    """First line of a message that may be followed by the end of a log."""
    return text.strip().partition("\n")[0]


def status_line(result: CaseResult) -> str | None:
    """`failed: it crashed`; None for a measured case."""
    if result.status == "ok":
        return None
    return f"{result.status}: {first_line(result.reason or '')}".rstrip(": ")
