"""Cases of a suite on a machine: models x backends x modes x precisions x batch sizes; their order; the machine."""

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
from typing import NamedTuple

from perfharness.analysis.suites.bench_names import short_backend
from perfharness.backends import Device, ModelSource, backend
from perfharness.backends.model_files import model_files, sha256_of
from perfharness.bench.spec import CaseSpec
from perfharness.bench.suite.suite import (
    Suite,
    SuiteBackend,
    SuiteModel,
    modes_of,
    possible_devices,
    source_of,
    variant_of,
)
from perfharness.distribution import VERSION
from perfharness.errors import BackendError, UsageError
from perfharness.model.bench import NO_CASE, BenchCase, MachineRecord, Precision
from perfharness.model.manifest import GpuRecord
from perfharness_launcher.gpus import GpuFacts, choose_gpus, find_gpus
from perfharness_launcher.machine import cpu_model

NOT_PART_OF_A_CASE: dict[str, bool | dict[str, bool]] = {
    "file_cache": True,
    "case": {"variant": True},
}
"""Fields of a spec that differ between attempts, or repeat its settings."""

LONGEST_ID = 120

Cell = tuple[object, ...]
"""Key of cases that differ in the batch size only."""


@dataclass(frozen=True)
class PlannedCase:
    """A case to run.

    Args:
        sha256: of everything that determines the measurement, including the files of model and inputs.
        refusal: why it cannot run, known without a process.
        files_sha256: of these files alone.
    """

    spec: CaseSpec
    sha256: str
    refusal: str | None = None
    files_sha256: str = ""

    @property
    def case(self) -> BenchCase:
        """Its description in the results."""
        return self.spec.case

    @property
    def cell(self) -> Cell:
        """Key of cases that differ in the batch size only; a backend may have several entries."""
        case, settings = self.case, (self.spec.threads, *sorted(self.spec.extra.items()))
        return (case.model, case.backend, case.mode, case.precision, case.device, settings)

    @property
    def case_id(self) -> str:
        """Its name in the suite and on disk."""
        return self.spec.case.case_id


def gpu_of(suite: Suite, facts: GpuFacts) -> GpuRecord | None:
    """The GPU of the suite's CUDA cases; None where there is none, or all run on the CPU. Raises `UsageError`."""
    if suite.run.gpu is not None and not facts.gpus:
        raise UsageError(f"--gpu {suite.run.gpu}: {facts.problem}")
    if not facts.gpus or (suite.device == "cpu" and all(one.device != "cuda" for one in suite.backend)):
        return None
    names = (suite.run.gpu,) if suite.run.gpu is not None else ()
    return choose_gpus(facts.gpus, names=names, visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"))[0]


class Plan(NamedTuple):
    """The cases of a suite on this machine, and the GPU that is used."""

    cases: list[PlannedCase]
    gpu: GpuRecord | None
    machine: MachineRecord


def plan_suite(suite: Suite) -> Plan:
    """Plan a suite for this machine. Raises `UsageError`."""
    facts = find_gpus()
    gpu = gpu_of(suite, facts)
    return Plan(plan_cases(suite, gpu), gpu, machine_of(facts, gpu.uuid if gpu is not None else None))


def machine_of(facts: GpuFacts, uuid: str | None) -> MachineRecord:
    """Description of the machine; `uuid` is that of the GPU in use."""
    return MachineRecord(
        hostname=socket.gethostname(),
        machine_id=_machine_id(),
        cpu=cpu_model(),
        gpus=[gpu.name or gpu.uuid for gpu in facts.gpus if gpu.uuid == uuid],
        driver=facts.driver,
        python=platform.python_version(),
        perfharness=VERSION,
    )


def _machine_id() -> str | None:
    """Digest of the operating system's machine id: the id itself should not leave the machine (machine-id(5))."""
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        with suppress(OSError, UnicodeDecodeError):
            if text := path.read_text(encoding="ascii").strip():
                return hashlib.sha256(f"perfharness {text}".encode()).hexdigest()[:16]
    return None


def plan_cases(suite: Suite, gpu: GpuRecord | None) -> list[PlannedCase]:
    """All cases, in the order of the suite. Reads the models' files once, for their digests.

    Args:
        gpu: the one to run on; None: there is none.
    """
    digest = cache(_files_digest)
    cases: list[PlannedCase] = []
    for model in suite.model:
        for one in suite.backend:
            device = device_of(suite, one, gpu)
            cells = product(modes_of(one, backend(one.name), device), one.precisions or suite.precisions)
            for (mode, precision), size in product(cells, model.batch_sizes or suite.batch_sizes):
                how = {"mode": mode, "precision": precision, "device": device, "variant": variant_of(one)}
                case = NO_CASE.model_copy(update={"backend": one.name, "batch_size": size, **how})
                cases.append(_planned(suite, model, one, case, gpu, digest))
    return with_ids(cases)


def shuffled(cases: Sequence[PlannedCase], seed: int) -> list[PlannedCase]:
    """In a seeded random order, so that drift of the machine does not follow the order of the suite."""
    order = list(cases)
    random.Random(seed).shuffle(order)
    return order


def default_baseline(suite: Suite, gpu: GpuRecord | None) -> str:
    """The first cell: first backend, its first mode and precision."""
    first = suite.backend[0]
    mode = modes_of(first, backend(first.name), device_of(suite, first, gpu))[0]
    return f"{first.name}/{mode}/{(first.precisions or suite.precisions)[0]}"


def device_of(suite: Suite, one: SuiteBackend, gpu: GpuRecord | None) -> Device:
    """The device of a backend."""
    return possible_devices(suite, one)[0 if gpu is None else -1]


def _planned(
    suite: Suite,
    model: SuiteModel,
    one: SuiteBackend,
    case: BenchCase,
    gpu: GpuRecord | None,
    digest: Callable[[ModelSource, Path | None], str],
) -> PlannedCase:
    source = source_of(suite, model, one.name)
    refusal: str | None
    if source is None:
        source, refusal = _any_source(suite, model), f"the suite names no model for {one.name}; add it to `sources`"
    else:
        refusal = _refusal(source, one.name, case.precision)
    measure = suite.measure
    uuids = (gpu.uuid,) if case.device == "cuda" and gpu is not None else ()
    spec = CaseSpec(
        case=case.model_copy(update={"model": source.name}),
        model=str(source.path) if source.path is not None else str(source.factory),
        model_name=source.name,
        threads=one.threads or measure.threads,
        extra=one.extra,
        cache_dir=_in_folder(suite, measure.cache_dir),
        input_file=_in_folder(suite, model.input_file),
        memory_limit_bytes=measure.memory_limit,
        latency=suite.latency,
        telemetry=suite.telemetry.model_copy(update={"gpu_uuids": uuids}),
        **model.model_dump(include={"inputs", "dimensions", "tokens_per_item", "tokens_dimension"}),
        **measure.model_dump(exclude={"threads", "cache_dir", "memory_limit"}),
    )
    files_sha256 = digest(source, spec.input_file)
    return PlannedCase(spec, _digest(spec, files_sha256), refusal, files_sha256)


def at_batch(planned: PlannedCase, batch_size: int) -> PlannedCase:
    """The same cell at another batch size, as in a suite with that batch size."""
    case = planned.case.model_copy(update={"case_id": "", "batch_size": batch_size})
    spec = planned.spec.model_copy(update={"case": case})
    sha256, name = _digest(spec, planned.files_sha256), _plain_id(case)
    if planned.case_id != _plain_id(planned.case) or len(name) > LONGEST_ID:
        name = _long_id(name, sha256)
    named = spec.model_copy(update={"case": case.model_copy(update={"case_id": name})})
    return replace(planned, spec=named, sha256=sha256)


def _any_source(suite: Suite, model: SuiteModel) -> ModelSource:
    """Source of a model for a backend that has none of its files, for its name."""
    found = next(filter(None, (source_of(suite, model, one.name) for one in suite.backend)), None)
    return found or ModelSource(model.name or "model", factory="")


def _refusal(source: ModelSource, name: str, precision: Precision) -> str | None:
    known = backend(name)
    if precision not in known.precisions:
        return f"{name} does not compute in {precision}; it does in: {', '.join(known.precisions)}"
    try:
        known.check_model(source)
    except BackendError as error:
        return str(error)
    return None


def _in_folder(suite: Suite, path: Path | None) -> Path | None:
    return None if path is None else (suite.folder / path).absolute()


def _files_digest(source: ModelSource, inputs: Path | None) -> str:
    given = [inputs] if inputs is not None and inputs.is_file() else []
    return "".join(sha256_of(path) for path in (*model_files(source), *given))


def _digest(spec: CaseSpec, files_sha256: str) -> str:
    """Digest of a spec whose case has no id yet."""
    text = spec.model_dump_json(exclude=NOT_PART_OF_A_CASE) + files_sha256
    return hashlib.sha256(text.encode()).hexdigest()


def with_ids(cases: Sequence[PlannedCase]) -> list[PlannedCase]:
    """Give cases unique ids that are valid file names."""
    plain = [_plain_id(one.case) for one in cases]
    count = Counter(name.lower() for name in plain)  # some file systems ignore case
    named = []
    for one, name in zip(cases, plain, strict=True):
        if count[name.lower()] > 1 or len(name) > LONGEST_ID:
            name = _long_id(name, one.sha256)
        case = one.case.model_copy(update={"case_id": name})
        named.append(replace(one, spec=one.spec.model_copy(update={"case": case})))
    return named


def _long_id(name: str, sha256: str) -> str:
    return f"{name[: LONGEST_ID - 9]}-{sha256[:8]}"


def _plain_id(case: BenchCase) -> str:
    name = short_backend(case.backend)
    variant = f"-{case.variant}" if case.variant else ""
    text = f"{case.model}-{name}-{case.mode}-{case.precision}-{case.device}{variant}-b{case.batch_size}"
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).lstrip(".-") or "case"
