"""What cases are called, and how they ended, for people."""

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
    """`2 x NVIDIA H200`; the CPU where no GPU was used."""
    count = Counter(machine.gpus)
    return ", ".join(f"{count[name]} x {name}" if count[name] > 1 else name for name in count) or machine.cpu or "?"


def short_backend(name: str) -> str:
    """`module:Class` as `Class`, `module:Class/mode/precision` as `Class/mode/precision`."""
    return name.rpartition(":")[2]


@dataclass(frozen=True)
class CaseNames:
    """Names of the cases of one suite, as short as they can be and still distinct. `long_backends`: those whose short
    name is another's too.
    """

    with_model: bool = False
    with_device: bool = False
    with_gpu: bool = False
    long_backends: frozenset[str] = frozenset()

    @classmethod
    def of(cls, cases: Iterable[Cell], *, with_model: bool | None = None) -> CaseNames:
        """Of all cases that are shown together; with the model where they have several, or where that is asked for."""
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
        """`torch/compile threads=2`: with the settings that the suite names, and the device where it uses both."""
        name = case.backend if case.backend in self.long_backends else short_backend(case.backend)
        parts = (
            f"{name}/{case.mode}" if case.mode else name,
            case.device if self.with_device else "",
            case.variant,
        )
        return " ".join(part for part in parts if part)

    def cell(self, case: Cell) -> str:
        """`torch/compile fp16 on H200`: with the model and the GPU where the suite has several."""
        model = case.model if self.with_model else None
        gpu = f"on {case.gpu}" if self.with_gpu and case.gpu else None
        return " ".join(filter(None, (model, self.backend(case), case.precision, gpu)))

    def case(self, case: BenchCase) -> str:
        """`torch/compile fp16, batch 64`."""
        return f"{self.cell(case)}, batch {case.batch_size}"

    def cells(self, cases: Iterable[BenchCase | MergedRow]) -> list[str]:
        """`torch/compile fp16, batch 1, 16`: one for each cell, in the order in which they come."""
        grouped = in_groups((self.cell(case), case.batch_size) for case in cases)
        return [f"{cell}, batch {', '.join(map(str, sorted(set(sizes))))}" for cell, sizes in grouped]


def in_groups(pairs: Iterable[tuple[Key, Value]]) -> list[tuple[Key, Sequence[Value]]]:
    """All values of one key together, keys and values in the order in which they come."""
    grouped: dict[Key, list[Value]] = {}
    for key, value in pairs:
        grouped.setdefault(key, []).append(value)
    return list(grouped.items())


def first_line(text: str) -> str:
    """First line of a message that may continue with the end of a log."""
    return text.strip().partition("\n")[0]


def status_line(result: CaseResult) -> str | None:
    """`failed: it crashed`; None for a case that was measured."""
    if result.status == "ok":
        return None
    return f"{result.status}: {first_line(result.reason or '')}".rstrip(": ")
