"""`compare_engines`: all engines, one after another, each as a case in its own process; then their maps in pairs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from perfharness.analysis.suites.bench_figures import MUCH_CLOCK_DROP_PERCENT, overlap
from perfharness.backends import BACKENDS, backend, backend_and_mode, model_source
from perfharness.bench.accuracy.depth import MAP_METRICS, ImageMeans, map_difference
from perfharness.bench.accuracy.figure import SampleError
from perfharness.bench.accuracy.functions import user_function
from perfharness.bench.accuracy.of_case import read_outputs
from perfharness.bench.accuracy.samples import as_map, find_samples, read_map, resized_map
from perfharness.bench.engines.model import (
    COMPARISON_NAME,
    ENGINE_ENTRY,
    IMAGE_FOLDER,
    MAPS_FOLDER,
    PICTURES,
    WALL_NAME,
    CompareSettings,
    Device,
    EngineCase,
    EngineComparison,
    EngineResult,
    EngineSpec,
    PairResult,
)
from perfharness.bench.process import result_of, run_process
from perfharness.bench.spec import ARRAYS_FOLDER, RESULT_NAME, LatencySettings, TelemetrySettings
from perfharness.bench.suite.matrix import machine_of
from perfharness.bench.suite.store import measuring
from perfharness.errors import UsageError
from perfharness.files import replacing
from perfharness.model.bench import BenchCase, Precision
from perfharness.model.telemetry import Float64
from perfharness_launcher.gpus import GpuFacts, find_gpus
from perfharness_launcher.interrupts import Interrupts

RUNNING, FAILED = ".running", "failed"
"""Subfolders of the results: of a running comparison, and of one without any result."""


@dataclass(frozen=True)
class GpuChoice:
    """Where the engines run; `reason` says why not on a GPU."""

    device: Device
    index: int | None = None
    uuid: str | None = None
    reason: str | None = None


def choose_gpu(facts: GpuFacts, gpu_id: int | None, device: str) -> GpuChoice:
    """The GPU of NVML's index, by its UUID, or the CPU.

    Args:
        gpu_id: None: the first, where there is one.
        device: `auto`, `cpu` or `cuda`.

    Raises `UsageError` where the requested GPU does not exist.
    """
    if device == "cpu":
        return GpuChoice("cpu", reason="the engines ran on the CPU, as --device cpu says")
    wanted = gpu_id or 0
    uuid = next((gpu.uuid for gpu in facts.gpus if gpu.index == wanted), None)
    if uuid is not None:
        return GpuChoice("cuda", wanted, uuid)
    if facts.gpus and (gpu_id is not None or device == "cuda"):
        there = ", ".join(f"{gpu.index} = {gpu.uuid}" for gpu in facts.gpus)
        raise UsageError(f"--gpu-id {wanted}: NVML has no GPU of that index; there are: {there}")
    problem = facts.problem or f"NVML has no GPU of index {wanted}"
    if device == "cuda":
        raise UsageError(f"--device cuda: there is no GPU ({problem})")
    return GpuChoice("cpu", reason=f"the engines ran on the CPU: there is no GPU ({problem})")


def engine_specs(
    engines: Sequence[str],
    settings: CompareSettings,
    gpu: GpuChoice,
    backends: Sequence[str] = (),
    precision: Precision | None = None,
) -> list[EngineSpec]:
    """Each engine as a case: one image, timed rounds, then the telemetry pass where there is a GPU.

    Args:
        backends: one for all, or one for each, as `NAME` or `NAME/MODE`; empty: by file type.

    Raises `UsageError`.
    """
    if len(backends) not in (0, 1, len(engines)):
        raise UsageError(
            f"--backends names {len(backends)}, and there are {len(engines)} engines: name one, or one for each"
        )
    specs: list[EngineSpec] = []
    for index, text in enumerate(engines):
        source = model_source(text)
        named = backends[index % len(backends)] if backends else _backend_of(source.suffix, text)
        chosen, mode = backend_and_mode(named)
        plain = re.sub(r"[^\w.-]+", "_", source.name) or "engine"
        names = (plain, *(f"{plain}_{number}" for number in range(2, len(engines) + 1)))
        name = next(name for name in names if name not in {one.case.case_id for one in specs})
        specs.append(
            EngineSpec(
                case=BenchCase(
                    case_id=name, model=name, backend=chosen, mode=mode, precision=precision or "fp32",
                    device=gpu.device, batch_size=1,
                ),
                model=text,
                threads=settings.threads,
                latency=LatencySettings(
                    warmup=settings.warmup, iterations=settings.iterations, max_seconds=settings.max_seconds
                ),
                telemetry=TelemetrySettings(
                    seconds=settings.sample_seconds,
                    interval_ms=settings.sample_interval_s * 1000,
                    gpu_uuids=() if gpu.uuid is None else (gpu.uuid,),
                ),
                precision=precision,
                settings=settings,
            )
        )  # fmt: skip
    return specs


def _backend_of(suffix: str, text: str) -> str:
    name = next((name for name in BACKENDS if suffix in backend(name).suffixes), None)
    if name is None:
        raise UsageError(f"no backend follows from {text}, so its backend must be named: --backends NAME")
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
    keep_maps: bool = False,
    say: Callable[[str], None] = lambda _: None,
    command: Sequence[str] = (),
) -> tuple[EngineComparison, Path]:
    """Run all engines on the image and the data, each in a process of its own, and compare their maps and speeds.

    After an interrupt the remaining engines are not run.

    Args:
        engines: files, or `module:function`.
        backends: one for all, or one for each, as `NAME` or `NAME/MODE`; empty: by file type.
        precision: None: that of an ONNX file, else fp32.
        device: `auto`, `cpu` or `cuda`.
        gpu_id: NVML's index; None: the first GPU, where there is one.
        timeout_s: of each engine's process.
        keep_maps: of the data set.
        say: called with a progress line.
        command: the command line, for the results.

    Returns the comparison, and the folder with `compare_engines.json`: one without any number does not
    replace one that has numbers, and is in `output_dir/failed`. Raises `UsageError` where it cannot be run, and
    `SampleError` where the image's ground truth cannot be read.
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
            say(f"{number} of {len(specs)}: {spec.case.case_id} ({spec.case.backend} on {gpu.device})")
            results.append(_run(spec, folder / spec.case.case_id, timeout_s, interrupts))
            if results[-1].reason:
                say(f"  {results[-1].status}: {results[-1].reason}")
        comparison = EngineComparison(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=list(command),
            machine=machine_of(facts, gpu.uuid),
            gpu_index=gpu.index,
            gpu_uuid=gpu.uuid,
            gpu_reason=gpu.reason,
            settings=settings,
            engines=[_with_speedup(one, results[0]) for one in results],
            pairs=_compare_maps(results, settings, folder),
            remarks=remarks_of(results),
        )
        if not keep_maps:
            for result in results:
                shutil.rmtree(folder / result.name / MAPS_FOLDER, ignore_errors=True)
        with replacing(folder / COMPARISON_NAME) as path:
            path.write_text(comparison.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return comparison, _put_in_place(folder, output_dir, comparison)


def check_settings(settings: CompareSettings) -> None:
    """Check everything that needs no engine. Raises `UsageError`, `SampleError`."""
    for name, path in (("--image", settings.image), ("--gt", settings.truth)):
        if path is not None and not path.is_file():
            raise UsageError(f"{name}: there is no file {path}")
    if settings.metric_truth is not None and settings.metric_images is None:
        raise UsageError("--metric-gt-dir needs --metric-images-dir, the images that the ground truth is of")
    if settings.metric_images is not None:
        find_samples(settings.metric_images, settings.metric_truth)
    if settings.truth is not None:
        read_map(settings.truth, settings.truth_scale)
    for text in (settings.preprocess.function, *settings.metrics):
        if text is not None:
            user_function(text)
    depth = settings.depth
    if not depth.min_depth < depth.max_depth:
        limits = f"must be more than 0 and less than --max-depth {depth.max_depth:g}"
        raise UsageError(f"--min-depth {depth.min_depth:g} {limits}")


def _run(spec: EngineSpec, folder: Path, timeout_s: float | None, interrupts: Interrupts) -> EngineResult:
    reason = "the comparison was interrupted before it was run"
    if not interrupts:
        end = run_process(spec, folder, interrupts, timeout_s=timeout_s, entry=ENGINE_ENTRY)
        reason = "it was interrupted" if end.interrupted else ""
    if reason:
        return engine_result(spec, EngineCase(case=spec.case, status="not-run", reason=reason))
    found = result_of(end, spec.case, folder, timeout_s, EngineCase)
    assert isinstance(found, EngineCase)
    result = engine_result(spec, found)
    arrays = folder / ARRAYS_FOLDER
    if (arrays / WALL_NAME).exists():
        (arrays / WALL_NAME).replace(folder / WALL_NAME)
    shutil.rmtree(arrays, ignore_errors=True)
    (folder / RESULT_NAME).write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return result


def engine_result(spec: EngineSpec, found: EngineCase) -> EngineResult:
    """The result of an engine, from that of its process."""
    reasons = dict(found.engine_reasons)
    if found.latency is not None and found.execute_latency is None:
        reasons["device_latency"] = "there is no device timer where the engine runs"
    start, rate = found.startup, found.items_per_second
    same = {name: getattr(found, name) for name in EngineResult.model_fields.keys() & EngineCase.model_fields.keys()}
    return EngineResult(
        **same
        | {
            "name": spec.case.case_id,
            "engine": spec.model,
            "backend": spec.case.backend,
            "device": spec.case.device,
            "mode": found.mode or spec.case.mode,
            "load_ms": None if start.load_ms is None else start.load_ms + (start.build_ms or 0.0),
            "device_latency": found.execute_latency,
            "images_per_second": None if rate is None else rate.value,
            "reasons": reasons,
        }
    )


def _put_in_place(running: Path, output_dir: Path, comparison: EngineComparison) -> Path:
    """Move a finished comparison to its final folder, `compare_engines.json` last; returns the folder.

    One without any number does not replace one that has numbers: it goes to a subfolder.
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
    try:
        before = EngineComparison.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return any(one.latency is not None for one in before.engines)


def _with_speedup(one: EngineResult, first: EngineResult) -> EngineResult:
    if one.latency is None or first.latency is None:
        return one
    return one.model_copy(update={"speedup": first.latency.mean.value / one.latency.mean.value})


def remarks_of(results: Sequence[EngineResult]) -> list[str]:
    """What may make the comparison unfair."""
    found = []
    for one in results:
        drop = one.gpu.clock_drop_percent
        if drop is not None and drop > MUCH_CLOCK_DROP_PERCENT:
            found.append(
                f"{one.name}: the SM clock fell by {drop:.1f} % while it ran, so its times are not those of a GPU that "
                "holds its clock; let it cool down, or lock clocks (`perfharness clocks max`)"
            )
        found += [f"{one.name}: {remark}" for remark in one.remarks]
    found += [chance for one in results[1:] if (chance := _by_chance(one, results[0])) is not None]
    sizes = {one.input.shape for one in results if one.input is not None}
    if len(sizes) > 1:
        found.append(f"engines were given images of different sizes: {', '.join(map(str, sorted(sizes)))}")
    return found


def _by_chance(one: EngineResult, first: EngineResult) -> str | None:
    """Why the difference in speed may be chance; None: it is significant."""
    if one.latency is None or first.latency is None:
        return None
    mine, base = one.latency.mean, first.latency.mean
    medians = first.latency.median.value / one.latency.median.value
    ratio = f"(the medians' ratio is {medians:.2f}x)"
    if mine.interval is None or base.interval is None:
        return f"{one.name}: too few iterations to say whether it is faster or slower than {first.name} {ratio}"
    if overlap(mine, base):
        return (
            f"{one.name}: the 95 % intervals of its mean latency and of {first.name}'s overlap, so the speed-up of "
            f"{base.value / mine.value:.2f}x may be chance {ratio}"
        )
    return None


def _compare_maps(results: Sequence[EngineResult], settings: CompareSettings, folder: Path) -> list[PairResult]:
    """Compare each pair of engines that have maps, over the data set where there is one, else over the one image."""
    over: Literal["image", "data set"] = "image" if settings.metric_images is None else "data set"
    maps = {one.name: folder / one.name / (IMAGE_FOLDER if over == "image" else MAPS_FOLDER) for one in results}
    made = [one for one in results if one.output is not None and maps[one.name].is_dir()]
    return [_pair(one, maps[one.name], two, maps[two.name], over) for one, two in combinations(made, 2)]


def _pair(
    first: EngineResult, one: Path, second: EngineResult, two: Path, over: Literal["image", "data set"]
) -> PairResult:
    def difference(name: str) -> dict[str, float] | str:
        try:
            own, other = engine_map(one, name, first), engine_map(two, name, second)
            return map_difference(own, resized_map(other, own.shape))
        except SampleError as error:
            return f"{name}: {error}"

    names = [str(path.relative_to(one).with_suffix("")) for path in sorted(one.rglob("*.npz"))]
    differences = [difference(name) for name in names]
    seen, failed = ImageMeans(MAP_METRICS, "pair of maps could be compared"), list[str]()
    for found in differences:
        if isinstance(found, str):
            failed.append(found)
        else:
            seen.add(found)
    figures = seen.figures()
    reason = f"{len(failed)} of {len(names)} images could not be compared: {failed[0]}" if failed else None
    return PairResult(
        first=first.name,
        second=second.name,
        images=seen.samples,
        over=over,
        **{name: one.value for name, one in figures.items()},
        reason=reason or figures["mae"].reason,
    )


def engine_map(folder: Path, name: str, result: EngineResult) -> Float64:
    """The map that an engine made. Raises `SampleError`."""
    outputs = read_outputs(folder, name)
    return np.asarray(as_map(outputs[result.output.name if result.output else next(iter(outputs))]), dtype=np.float64)
