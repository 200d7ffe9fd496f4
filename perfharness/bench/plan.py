"""Cases of a suite on this machine: models x backends x modes x precisions x batch sizes, in order."""

from __future__ import annotations

import hashlib
import os
import platform
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from perfharness.analysis.suites.bench_figures import cell_of, is_named
from perfharness.analysis.suites.bench_names import short_backend
from perfharness.backends import ModelSource, backend
from perfharness.backends.model_files import model_files, sha256_of
from perfharness.bench.accuracy.settings import AccuracyPass
from perfharness.bench.spec import CaseSpec
from perfharness.bench.suite import Suite, SuiteBackend, SuiteModel
from perfharness.distribution import VERSION
from perfharness.errors import BackendError, UsageError
from perfharness.model.bench import NO_CASE, BenchCase, MachineRecord
from perfharness.model.manifest import GpuRecord
from perfharness_launcher.gpus import GpuFacts, choose_gpus, find_gpus
from perfharness_launcher.machine import cpu_model

NOT_DIGESTED: Any = {"file_cache": True, "case": {"variant", "case_id", "gpu", "gpu_index"}, "accuracy": {"baseline"}}
"""Fields of a spec that vary between attempts, or repeat its settings."""

LONGEST_ID = 120

Cell = tuple[object, ...]
"""Key of cases that differ only in batch size."""


@dataclass(frozen=True)
class PlannedCase:
    """A case to run.

    Args:
        files_sha256: of the model and input files.
        refusal: reason why it cannot run, known without a process.
        baseline: case to compare sample outputs with.
    """

    spec: CaseSpec
    files_sha256: str
    refusal: str | None = None
    baseline: PlannedCase | None = None

    @property
    def case(self) -> BenchCase:
        """Description for the results."""
        return self.spec.case

    @property
    def case_id(self) -> str:
        """Name in the suite and on disk."""
        return self.case.case_id

    @property
    def cell(self) -> Cell:
        """Key of cases that differ only in batch size; a backend may have several entries."""
        case, settings = self.case, (self.spec.threads, *sorted(self.spec.extra.items()))
        return (case.model, case.backend, case.mode, case.precision, case.device, case.gpu, settings)

    @property
    def sha256(self) -> str:
        """Digest of everything that determines the measurement, including model and input files."""
        text = self.spec.model_dump_json(exclude=NOT_DIGESTED) + self.files_sha256
        return hashlib.sha256((text + (self.baseline.sha256 if self.baseline else "")).encode()).hexdigest()

    def with_spec(self, **fields: Any) -> PlannedCase:
        """Copy with other fields of the spec."""
        return replace(self, spec=self.spec.model_copy(update=fields))

    def at_batch(self, batch_size: int) -> PlannedCase:
        """Copy at another batch size, as in a suite with that size."""
        other = self.with_spec(case=self.case.model_copy(update={"batch_size": batch_size}))
        return _named(other, _plain_id(other.case), is_plain=self.case_id == _plain_id(self.case))


class Plan(NamedTuple):
    """Cases of a suite on this machine, in suite order."""

    cases: list[PlannedCase]
    baseline: str
    machine: MachineRecord


def plan_suite(suite: Suite) -> Plan:
    """Plan a suite for this machine. Raises `UsageError`."""
    facts = find_gpus()
    if suite.gpus and not facts.gpus:
        raise UsageError(f"--gpus {','.join(suite.gpus)}: {facts.problem}; drop it to run on the CPU")
    gpus: Sequence[GpuRecord] = ()
    if facts.gpus and (suite.device != "cpu" or any(one.device == "cuda" for one in suite.backend)):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = choose_gpus(facts.gpus, names=suite.gpus, visible_devices=visible)
    cases = plan_cases(suite, gpus)
    return Plan(cases, suite.baseline or cell_of(cases[0].case), machine_of(facts, [gpu.uuid for gpu in gpus]))


def machine_of(facts: GpuFacts, uuids: Sequence[str]) -> MachineRecord:
    """Description of the machine, with the GPUs in use."""
    return MachineRecord(
        hostname=socket.gethostname(),
        machine_id=_machine_id(),
        cpu=cpu_model(),
        gpus=[gpu.name or gpu.uuid for gpu in facts.gpus if gpu.uuid in uuids],
        driver=facts.driver,
        python=platform.python_version(),
        perfharness=VERSION,
    )


def _machine_id() -> str | None:
    """Digest of the machine id, because the id itself should stay on the machine (machine-id(5))."""
    with suppress(OSError):
        if text := Path("/etc/machine-id").read_text(encoding="utf-8").strip():
            return hashlib.sha256(f"perfharness {text}".encode()).hexdigest()[:16]
    return None


def plan_cases(suite: Suite, gpus: Sequence[GpuRecord]) -> list[PlannedCase]:
    """List all cases in suite order, those for a GPU on each. Reads the models' files once, for their digests."""
    digest = cache(_files_digest)
    cases: list[PlannedCase] = []
    for model, one in product(suite.model, suite.backend):
        device = suite.possible_devices(one)[-1 if gpus else 0]
        places = _named_gpus(gpus if device == "cuda" else ())
        cells = product(places, one.modes_on(device), one.precisions or suite.precisions)
        for ((gpu, name), mode, precision), size in product(cells, model.batch_sizes or suite.batch_sizes):
            how = {"mode": mode, "precision": precision, "device": device, "variant": one.variant}
            where = {"gpu": name, "gpu_index": None if gpu is None else gpu.index}
            case = NO_CASE.model_copy(update={"backend": one.name, "batch_size": size, **how, **where})
            cases.append(_planned(suite, model, one, case, gpu, digest))
    plain = [_plain_id(one.case) for one in cases]
    count = Counter(name.lower() for name in plain)  # some file systems ignore case
    named = [_named(one, name, is_plain=count[name.lower()] == 1) for one, name in zip(cases, plain, strict=True)]
    return _with_accuracy(suite, named)


def _named_gpus(gpus: Sequence[GpuRecord]) -> list[tuple[GpuRecord | None, str | None]]:
    """GPUs with names: `H200`, or `H200 (GPU 0)` if several are equal. Without GPUs, the CPU."""
    if not gpus:
        return [(None, None)]
    names = [(gpu.name or gpu.uuid).removeprefix("NVIDIA ") for gpu in gpus]
    for number in ("GPU {0.index}", "{0.uuid}"):  # MIG instances share their GPU's index
        clash = {name for name in names if names.count(name) > 1}
        names = [
            f"{name} ({number.format(gpu)})" if name in clash else name for gpu, name in zip(gpus, names, strict=True)
        ]
    return list(zip(gpus, names, strict=True))


def in_order(suite: Suite, cases: Sequence[PlannedCase]) -> list[PlannedCase]:
    """Running order: shuffled by the suite's seed, so that drift of the machine does not follow the suite.

    Baselines for sample outputs come first.
    """
    order = list(cases)
    if suite.run.shuffle:
        random.Random(suite.run.seed).shuffle(order)
    return sorted(order, key=lambda one: one.spec.accuracy is None or not one.spec.accuracy.store)


def _planned(
    suite: Suite,
    model: SuiteModel,
    one: SuiteBackend,
    case: BenchCase,
    gpu: GpuRecord | None,
    digest: Callable[[ModelSource, tuple[Path | None, ...]], str],
) -> PlannedCase:
    measure, source, known = suite.measure, suite.source_of(model, one.name), backend(one.name)
    refusal = None
    if source is None:
        sources = (suite.source_of(model, other.name) for other in suite.backend)
        source = next(filter(None, sources), ModelSource(model.title, factory=""))
        refusal = f"the suite has no model for {one.name}; add it to `sources`"
    elif case.precision not in known.precisions:
        refusal = f"{one.name} has no precision {case.precision}; it has: {', '.join(known.precisions)}"
    else:
        try:
            known.check_model(source)
        except BackendError as error:
            refusal = str(error)
    spec = CaseSpec(
        case=case.model_copy(update={"model": source.name}),
        model=str(source.path) if source.path is not None else str(source.factory),
        model_name=source.name,
        passes=tuple(dict.fromkeys((*measure.passes, *(("outputs",) if suite.equality is not None else ())))),
        threads=one.threads or measure.threads,
        extra=one.extra,
        cache_dir=suite.in_folder(measure.cache_dir),
        input_file=suite.in_folder(model.input_file),
        calibration=suite.in_folder(model.calibration) if case.precision == "int8" else None,
        memory_limit_bytes=measure.memory_limit,
        latency=suite.latency,
        telemetry=suite.telemetry.model_copy(update={"gpu_uuids": () if gpu is None else (gpu.uuid,)}),
        **model.model_dump(include={"inputs", "dimensions", "tokens_per_item", "tokens_dimension"}),
        **measure.model_dump(include={"seed", "layer_rounds"}),
    )
    return PlannedCase(spec, digest(source, (spec.input_file, spec.calibration)), refusal)


def _with_accuracy(suite: Suite, cases: list[PlannedCase]) -> list[PlannedCase]:
    """Let each cell's case with the smallest batch size run the samples; the baseline's outputs are stored."""
    if (settings := suite.accuracy_data()) is None:
        return cases
    baseline = suite.baseline or cell_of(cases[0].case)
    smallest: dict[Cell, PlannedCase] = {}
    for one in sorted(cases, key=lambda one: one.case.batch_size):
        smallest.setdefault(one.cell, one)
    bases: dict[tuple[str, str | None], PlannedCase] = {}
    for one in cases:
        if one.case_id == smallest[one.cell].case_id and is_named(one.case, baseline):
            given = AccuracyPass(settings=settings, against=cell_of(one.case), store=True)
            bases.setdefault((one.case.model, one.case.gpu), one.with_spec(accuracy=given))

    def with_samples(one: PlannedCase) -> PlannedCase:
        model, device = one.case.model, one.case.device
        elsewhere = (base for (name, _), base in bases.items() if name == model and base.case.device != device)
        base = bases.get((model, one.case.gpu)) or next(elsewhere, None)
        if base is not None and base.case_id == one.case_id:
            return base
        given = AccuracyPass(settings=settings, against=baseline if base is None else cell_of(base.case))
        return replace(one.with_spec(accuracy=given), baseline=base)

    return [with_samples(one) if one.case_id == smallest[one.cell].case_id else one for one in cases]


def _files_digest(source: ModelSource, files: tuple[Path | None, ...]) -> str:
    given = [path for path in files if path is not None and path.is_file()]
    return "".join(sha256_of(path) for path in (*model_files(source), *given))


def _named(one: PlannedCase, name: str, *, is_plain: bool) -> PlannedCase:
    """Set an id that is a valid file name, with part of the digest if the plain one is taken or too long."""
    if not is_plain or len(name) > LONGEST_ID:
        name = f"{name[: LONGEST_ID - 9]}-{one.sha256[:8]}"
    return one.with_spec(case=one.case.model_copy(update={"case_id": name}))


def _plain_id(case: BenchCase) -> str:
    name = short_backend(case.backend)
    variant = f"-{case.variant}" if case.variant else ""
    device = case.device if case.gpu_index is None else f"{case.device}{case.gpu_index}"
    text = f"{case.model}-{name}-{case.mode}-{case.precision}-{device}{variant}-b{case.batch_size}"
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).lstrip(".-") or "case"
