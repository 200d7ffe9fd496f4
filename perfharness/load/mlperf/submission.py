"""A folder that is shaped like a submission to MLPerf Inference. Nothing in it is invented: what is not known is empty,
and named.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from perfharness.errors import ResultError
from perfharness.files import reason_of, write_text
from perfharness.load.mlperf.settings import MlperfSettings
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness.model.mlperf import ACCURACY_LOG, DETAIL_LOG, SUMMARY_LOG, MlperfResult

UNKNOWN = (
    "accelerator_frequency", "accelerator_host_interconnect", "accelerator_interconnect",
    "accelerator_interconnect_topology", "accelerator_memory_configuration", "accelerator_on-chip_memories", "cooling",
    "host_memory_capacity", "host_memory_configuration", "host_networking", "host_networking_topology",
    "host_processor_caches", "host_processor_core_count", "host_processor_frequency", "host_processor_interconnect",
    "host_processors_per_node", "host_storage_capacity", "host_storage_type", "hw_notes", "status", "sw_notes",
    "system_type",
)  # fmt: skip
"""Fields of a system description that perfharness does not measure."""

MEASUREMENTS_UNKNOWN = ("input_data_types", "starting_weights_filename", "weight_transformations", "retraining")
ACCURACY_TEXT = "accuracy.txt"


def write_submission(
    settings: MlperfSettings, result: MlperfResult, logs: Path, manifest: RunManifest
) -> tuple[Path, Finding]:
    """Add a test to the folder, over an earlier one of the same kind; the submitter's folder, and what is missing.

    Raises `ResultError` where it cannot be written.
    """
    assert settings.submission is not None
    root = settings.submission / settings.division / settings.submitter
    benchmark = settings.benchmark or Path(settings.model.rpartition(":")[0] or settings.model).stem
    place = root / "results" / settings.system / benchmark / settings.scenario
    measurements = root / "measurements" / settings.system / benchmark / settings.scenario
    try:
        _copy_logs(settings, result, logs, place)
        for folder in (root / "systems", measurements, root / "code" / benchmark):
            folder.mkdir(parents=True, exist_ok=True)
        if (logs / "user.conf").is_file():
            shutil.copyfile(logs / "user.conf", measurements / "user.conf")
        system, implementation = _system(settings, result, manifest), _implementation(settings, result)
        _write_json(root / "systems" / f"{settings.system}.json", system)
        _write_json(measurements / f"{settings.system}_perfharness_{settings.scenario}.json", implementation)
        missing = _missing(settings, place, measurements, system, implementation)
        text = "\n".join(
            [README.format(benchmark=benchmark, scenario=settings.scenario), *(f"- {one}" for one in missing)]
        )
        write_text(measurements / "README.md", lambda file: print(text, file=file))
    except OSError as error:
        raise ResultError(f"--submission {settings.submission} cannot be written: {reason_of(error)}") from error
    message = f"The submission is only shaped like one, and no checker has seen it; missing: {'; '.join(missing)}"
    hint = f"fill them in; {measurements / 'README.md'} lists them"
    return root, Finding("mlperf-submission-incomplete", Severity.WARNING, message, hint)


README = """# {benchmark}, {scenario}

Written by perfharness (`perfharness mlperf`) in the shape of a submission to MLPerf Inference. It was not checked by
MLCommons' submission checker, and perfharness's system under test is no reference implementation.

Missing:
"""


def _copy_logs(settings: MlperfSettings, result: MlperfResult, logs: Path, place: Path) -> None:
    is_accuracy = settings.mode == "accuracy"
    target = place / "accuracy" if is_accuracy else place / "performance" / "run_1"
    target.mkdir(parents=True, exist_ok=True)
    for name in (SUMMARY_LOG, DETAIL_LOG, ACCURACY_LOG):
        (target / name).unlink(missing_ok=True)  # of an earlier test
        if (logs / name).is_file():
            shutil.copyfile(logs / name, target / name)
    if is_accuracy:
        lines = [f"{name}={one.value}" for name, one in result.accuracy.items() if one.value is not None]
        write_text(target / ACCURACY_TEXT, lambda file: file.writelines(f"{line}\n" for line in lines))


def _system(settings: MlperfSettings, result: MlperfResult, manifest: RunManifest) -> dict[str, Any]:
    """The system description; empty where nothing is known."""
    facts, gpus = manifest.environment, manifest.environment.gpus
    used = {uuid for process in manifest.processes for uuid in process.given_gpus}
    mine = [gpu for gpu in gpus if gpu.uuid in used]
    names = sorted({gpu.name for gpu in mine if gpu.name})
    memory = sorted({gpu.memory_total_bytes for gpu in mine if gpu.memory_total_bytes is not None})
    versions = result.sut.versions if result.sut is not None else {}
    stack = [f"CUDA driver {facts.cuda_driver}"] if facts.cuda_driver and mine else []
    stack += [f"driver {facts.driver}"] if facts.driver and mine else []
    stack += [f"Python {facts.python}"] if facts.python else []
    return {
        **dict.fromkeys(UNKNOWN, ""),
        "division": settings.division,
        "submitter": settings.submitter,
        "system_name": settings.system,
        "number_of_nodes": "1",
        "host_processor_model_name": facts.cpu or "",
        "host_processor_vcpu_count": "" if facts.cpu_count is None else str(facts.cpu_count),
        "accelerators_per_node": str(len(mine)),
        "accelerator_model_name": ", ".join(names),
        "accelerator_memory_capacity": ", ".join(f"{size / 2**30:.0f} GiB" for size in memory),
        "framework": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "operating_system": " ".join(filter(None, (facts.os, facts.kernel))),
        "other_software_stack": ", ".join([*stack, f"LoadGen {result.sut.loadgen if result.sut else ''}".strip()]),
    }


def _implementation(settings: MlperfSettings, result: MlperfResult) -> dict[str, Any]:
    return {
        **dict.fromkeys(MEASUREMENTS_UNKNOWN, ""),
        "weight_data_types": settings.precision,
        "perfharness": {"settings": result.asked, "loadgen": result.settings},
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, lambda file: print(json.dumps(content, indent=2), file=file))


def _missing(
    settings: MlperfSettings, place: Path, measurements: Path, system: dict[str, Any], implementation: dict[str, Any]
) -> list[str]:
    found = []
    if not (place / "performance" / "run_1" / SUMMARY_LOG).is_file():
        found.append("a performance test of the same scenario (--mode performance)")
    if not (place / "accuracy" / ACCURACY_LOG).is_file():
        found.append("an accuracy test of the same scenario (--mode accuracy)")
    elif not (place / "accuracy" / ACCURACY_TEXT).read_text("utf-8").strip():
        found.append(f"{ACCURACY_TEXT}: the score by the benchmark's own script")
    if not (measurements / "user.conf").is_file():
        found.append("measurements: user.conf (--user-conf)")
    if settings.benchmark is None:
        found.append("the rules and the name of the benchmark (--benchmark)")
    empty = [name for name in (*system, *implementation) if (system | implementation)[name] == ""]
    found.append(f"fields of the system and its measurements: {', '.join(sorted(empty))}")
    found.append("code/: the implementation; compliance/ for the closed division")
    return found
