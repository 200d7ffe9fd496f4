"""`compare_engines`: run engines one after another, each as a case in its own process; the first is the reference."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from perfharness.analysis.suites.bench_figures import MUCH_CLOCK_DROP_PERCENT, overlap
from perfharness.backends import BACKENDS, backend, backend_and_mode, model_source
from perfharness.bench.accuracy.data import SampleError, as_map, find_samples, read_map, resized_map, user_function
from perfharness.bench.accuracy.depth import map_difference
from perfharness.bench.accuracy.run import read_outputs
from perfharness.bench.engines.model import (
    COMPARISON_NAME,
    ENGINE_ENTRY,
    IMAGE_FOLDER,
    PICTURES,
    CompareSettings,
    EngineComparison,
    EngineResult,
    EngineSpec,
    MapDifference,
)
from perfharness.bench.plan import machine_of
from perfharness.bench.process import result_of, run_process
from perfharness.bench.results import measuring, write_iterations
from perfharness.bench.spec import RESULT_NAME, LatencySettings, TelemetrySettings
from perfharness.errors import ResultError, UsageError
from perfharness.files import read_model, write_model
from perfharness.model.bench import NO_CASE, Precision
from perfharness.model.columns import Float64
from perfharness.model.manifest import GpuRecord
from perfharness_launcher.gpus import GpuFacts, choose_gpus, find_gpus
from perfharness_launcher.interrupts import Interrupts

RUNNING, FAILED = ".running", "failed"
"""Subfolders of the results: for a running comparison, and for one without results."""


def choose_gpu(facts: GpuFacts, gpu_id: int | None, device: str) -> GpuRecord | None:
    """The GPU with this NVML index (default 0); None to run on the CPU. Raises `UsageError`."""
    if device == "cpu" or (device == "auto" and not facts.gpus):
        return None
    if not facts.gpus:
        raise UsageError(f"--device cuda: {facts.problem}")
    return choose_gpus(facts.gpus, names=(str(gpu_id or 0),))[0]


def engine_specs(
    engines: Sequence[str],
    settings: CompareSettings,
    gpu: GpuRecord | None,
    backends: Sequence[str] = (),
    precision: Precision | None = None,
) -> list[EngineSpec]:
    """Specify each engine as a case: one image, timed rounds, then the telemetry pass on a GPU.

    Arguments are those of `compare_engines`. Raises `UsageError`.
    """
    if len(backends) not in (0, 1, len(engines)):
        raise UsageError(f"--backends has {len(backends)} names, --engines {len(engines)}: give one, or one per engine")
    latency = LatencySettings(warmup=settings.warmup, iterations=settings.iterations, max_seconds=settings.max_seconds)
    telemetry = TelemetrySettings(
        interval_ms=settings.sample_interval_s * 1000, gpu_uuids=() if gpu is None else (gpu.uuid,)
    )
    specs: list[EngineSpec] = []
    for index, text in enumerate(engines):
        source = model_source(text)
        named = backends[index % len(backends)] if backends else _backend_of(source.suffix, text)
        chosen, mode = backend_and_mode(named)
        plain = re.sub(r"[^\w.-]+", "_", source.name) or "engine"
        names = (plain, *(f"{plain}_{number}" for number in range(2, len(engines) + 1)))
        name = next(name for name in names if name not in {one.case.case_id for one in specs})
        what = {"case_id": name, "model": name, "backend": chosen, "mode": mode, "precision": precision}
        where = {"device": "cpu"} if gpu is None else {"device": "cuda", "gpu": gpu.name, "gpu_index": gpu.index}
        case = NO_CASE.model_copy(update={**what, **where})
        common = {"threads": settings.threads, "latency": latency, "telemetry": telemetry, "settings": settings}
        specs.append(EngineSpec.model_validate({"case": case, "model": text, **common}))
    return specs


def _backend_of(suffix: str, text: str) -> str:
    name = next((name for name in BACKENDS if suffix in backend(name).suffixes), None)
    if name is None:
        raise UsageError(f"the backend of {text} is unknown; name it with --backends NAME")
    return name


def compare_engines(
    engines: Sequence[str],
    settings: CompareSettings,
    output_dir: Path,
    *,
    backends: Sequence[str] = (),
    precision: Precision | None = None,
    device: str = "auto",
    gpu_id: int | None = None,
    timeout_s: float | None = None,
    say: Callable[[str], None] = lambda _: None,
    command: Sequence[str] = (),
) -> tuple[EngineComparison, Path]:
    """Run all engines on the image and the data, each in its own process, and compare maps and speeds.

    After an interrupt, remaining engines are not run.

    Args:
        engines: files, or `module:function`.
        backends: one for all, or one each, as `NAME` or `NAME/MODE`; empty to choose by file type.
        precision: None for that of the ONNX file, else fp32.
        device: `auto`, `cpu` or `cuda`.
        gpu_id: NVML index; None for the first GPU, if any.
        timeout_s: per engine process.
        say: called with a progress line.
        command: the command line, for the results.

    Returns the comparison and the folder with `compare_engines.json`: a comparison without numbers does not replace one
    with numbers, but goes to `output_dir/failed`. Raises `UsageError` for settings that cannot be run, and
    `SampleError` for unreadable ground truth of the image.
    """
    check_settings(settings)
    paths = ("image", "truth", "metric_images", "metric_truth")
    given = {name: path.absolute() for name in paths if (path := getattr(settings, name)) is not None}
    settings = settings.model_copy(update=given)
    facts = find_gpus()
    gpu = choose_gpu(facts, gpu_id, device)
    specs = engine_specs(engines, settings, gpu, backends, precision)
    with measuring(output_dir) as interrupts:
        folder = output_dir / RUNNING
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        results: list[EngineResult] = []
        for number, spec in enumerate(specs, 1):
            say(f"{number} of {len(specs)}: {spec.case.case_id} ({spec.case.backend} on {spec.case.device})")
            result = _run(spec, folder / spec.case.case_id, timeout_s, interrupts)
            results.append(_against_first(result, results[0] if results else result, folder))
            if result.reason:
                say(f"  {result.status}: {result.reason}")
        comparison = EngineComparison(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=list(command),
            machine=machine_of(facts, () if gpu is None else (gpu.uuid,)),
            gpu_index=gpu.index if gpu else None,
            gpu_uuid=gpu.uuid if gpu else None,
            gpu_reason=None if gpu else f"the engines ran on the CPU: {facts.problem or '--device cpu'}",
            settings=settings,
            engines=results,
            remarks=remarks_of(results),
        )
        write_model(folder / COMPARISON_NAME, comparison)
        return comparison, _put_in_place(folder, output_dir, comparison)


def check_settings(settings: CompareSettings) -> None:
    """Check everything that does not need an engine. Raises `UsageError`, `SampleError`."""
    for name, path in (("--image", settings.image), ("--gt", settings.truth)):
        if path is not None and not path.is_file():
            raise UsageError(f"{name}: there is no file {path}")
    if settings.metric_truth is not None and settings.metric_images is None:
        raise UsageError("--metric-gt-dir needs --metric-images-dir, the images of the ground truth")
    if settings.metric_images is not None:
        find_samples(settings.metric_images, settings.metric_truth)
    if settings.truth is not None:
        read_map(settings.truth, settings.truth_scale)
    for text in (settings.preprocess.function, *settings.metrics):
        if text is not None:
            user_function(text)
    depth = settings.depth
    if not depth.min_depth < depth.max_depth:
        raise UsageError(f"--min-depth {depth.min_depth:g} must be less than --max-depth {depth.max_depth:g}")


def _run(spec: EngineSpec, folder: Path, timeout_s: float | None, interrupts: Interrupts) -> EngineResult:
    end = None if interrupts else run_process(spec, folder, interrupts, timeout_s=timeout_s, entry=ENGINE_ENTRY)
    if end is None or end.interrupted:
        reason = "not run: the comparison was interrupted"
        return EngineResult(case=spec.case, engine=spec.model, status="not-run", reason=reason)
    result = result_of(end, spec.case, folder, timeout_s, EngineResult)
    assert isinstance(result, EngineResult)
    write_iterations(folder)
    write_model(folder / RESULT_NAME, result)
    return result.model_copy(update={"engine": spec.model})


def _against_first(one: EngineResult, first: EngineResult, folder: Path) -> EngineResult:
    """Add the speed-up over the first engine and the difference of its map."""
    speedup = difference = None
    if one.latency is not None and first.latency is not None:
        speedup = first.latency.mean.value / one.latency.mean.value
    if one is not first and one.output is not None and first.output is not None:
        try:
            reference = engine_map(folder, first)
            found = map_difference(reference, resized_map(engine_map(folder, one), reference.shape))
            difference = MapDifference.model_validate(found)
        except SampleError as error:
            difference = MapDifference(reason=str(error))
    return one.model_copy(update={"speedup": speedup, "difference": difference})


def engine_map(folder: Path, result: EngineResult) -> Float64:
    """Map of the image by an engine. Raises `SampleError`."""
    assert result.output is not None
    (file,) = (folder / result.name / IMAGE_FOLDER).glob("*.npz")
    return np.asarray(as_map(read_outputs(file.parent, file.stem)[result.output.name]), dtype=np.float64)


def _put_in_place(running: Path, output_dir: Path, comparison: EngineComparison) -> Path:
    """Move a finished comparison to its final folder, `compare_engines.json` last; returns the folder.

    A comparison without numbers does not replace one with numbers, but goes to a subfolder.
    """
    if all(one.latency is None for one in comparison.engines) and _has_numbers(output_dir / COMPARISON_NAME):
        failed = output_dir / FAILED
        shutil.rmtree(failed, ignore_errors=True)
        return running.rename(failed)
    for name in PICTURES:  # of an earlier comparison
        (output_dir / name).unlink(missing_ok=True)
    for new in sorted(running.iterdir(), key=lambda path: path.name == COMPARISON_NAME):
        old = output_dir / new.name
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        new.rename(old)
    running.rmdir()
    return output_dir


def _has_numbers(file: Path) -> bool:
    with suppress(ResultError):
        before = read_model(file, EngineComparison)
        return before is not None and any(one.latency is not None for one in before.engines)
    return False


def remarks_of(results: Sequence[EngineResult]) -> list[str]:
    """Reasons why the comparison may be unfair."""
    found = []
    for one in results:
        drop = one.clock_drop_percent
        if drop is not None and drop > MUCH_CLOCK_DROP_PERCENT:
            found.append(
                f"{one.name}: the SM clock fell by {drop:.1f} % while it ran; let the GPU cool down, or lock its "
                "clocks (`perfharness clocks max`)"
            )
        found += [f"{one.name}: {remark}" for remark in one.remarks]
        mine, base = one.latency, results[0].latency
        if one is not results[0] and mine is not None and base is not None and overlap(mine.mean, base.mean):
            found.append(f"{one.name}: not significantly faster or slower than {results[0].name}")
    sizes = {one.input.shape for one in results if one.input is not None}
    if len(sizes) > 1:
        found.append(f"engines got images of different sizes: {', '.join(map(str, sorted(sizes)))}")
    return found
