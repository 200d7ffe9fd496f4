"""`compare-engines` with real ONNX models in real processes, against figures by hand; pictures of made telemetry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from perfharness.analysis.suites.latency import latency_stats
from perfharness.bench import compare_engines
from perfharness.bench.engines.compare import choose_gpu, engine_specs, remarks_of
from perfharness.bench.engines.model import PICTURES, CompareSettings, EngineComparison, EngineResult
from perfharness.bench.engines.views import map_tiles
from perfharness.bench.results import write_iterations
from perfharness.cli.main import run
from perfharness.errors import UsageError
from perfharness.model.bench import BenchCase, MachineRecord
from perfharness.model.manifest import GpuRecord
from perfharness.render.charts.engines import gpu_picture, speed_picture
from perfharness.render.console import print_blocks
from perfharness.render.views.engines import engines_view
from perfharness.telemetry.store import read_sample_log, write_sample_log
from perfharness_launcher.gpus import GpuFacts, find_gpus
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.support.replayed_nvml import replay_environment
from tests.support.sample_builder import SampleBuilder
from tests.unit.bench_results import known, made_up
from tests.unit.charts import drawn, lines
from tests.unit.depth_models import random_net, weighted_sum

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
Image = pytest.importorskip("PIL.Image")

TENTH = 0.0999755859375
"""0.1 in fp16."""


def compare(folder: Path, engines: Sequence[Path], image: str, *arguments: Any) -> int:
    """The verb, on the CPU, with few iterations; results in `out`."""
    given = ["--engines", *engines, "--image", folder / image, "-o", folder / "out", *arguments]
    fast = ["--warmup", "2", "--iterations", "20", "--threads", "1", "--device", "cpu"]
    return run(["compare-engines", *map(str, given), *fast])


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "compare_engines.json").read_text())
    return found


def write_image(folder: Path) -> str:
    np.save(folder / "a.npy", np.ones((3, 8, 8), np.float32))
    return "a.npy"


def write_data(folder: Path) -> None:
    """Two images and their truth; the map is channel 0 plus a tenth of channel 1.

    `one`: channel 0 (1, 2; 4, 8), channel 1 (0, 10; 0, 0); truth (1, 2; 4, none). `two`: (2, 2; 2, 2)
    against (2, 4; 2, 2).
    """
    for name in ("in", "gt"):
        (folder / name).mkdir()
    one, two = np.zeros((2, 3, 2, 2), np.float32)
    one[0], one[1, 0, 1] = [[1, 2], [4, 8]], 10
    two[0], two[0, 0, 0] = 2, 2
    np.save(folder / "in" / "one.npy", one)
    np.save(folder / "in" / "two.npy", two)
    np.save(folder / "in" / "lone.npy", two)
    np.save(folder / "gt" / "one.npy", np.array([[1, 2], [4, 0]], np.float32))
    Image.fromarray(np.array([[512, 1024], [512, 512]], np.uint16)).save(folder / "gt" / "two.png")


def test_metrics_are_those_of_the_example_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fp32: map (1, 3; 4, -), error 1 in one of three pixels. fp16: its tenth is a little less, the error 0.99975...

    Image `two` is the same in both: error 2 of 4 in one of four pixels. Maps of `one` normalised from 1 to 8 differ by
    (10 * 0.1 - 10 * TENTH) / 7 in one of four pixels.
    """
    write_data(tmp_path)
    engines = [weighted_sum(tmp_path / f"{kind}.onnx", (1, 0.1, 0), kind) for kind in ("fp32", "fp16")]
    (tmp_path / "own.py").write_text(
        "def bias(outputs, reference, sample):\n"
        "    valid = reference['truth'] > 0\n"
        "    return float((outputs['depth'][0] - reference['truth'])[valid].mean())\n"
    )
    code = compare(
        tmp_path, engines, "in/one.npy", "--gt", tmp_path / "gt" / "one.npy", "--metric-images-dir", tmp_path / "in",
        "--metric-gt-dir", tmp_path / "gt", "--gt-scale", 256, "--scaling", "none", "--input-size", 2, "--metric",
        f"{tmp_path / 'own.py'}:bias",
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert code == 0, shown
    found = result_of(tmp_path / "out")
    for engine, precision, error in zip(found["engines"], ("fp32", "fp16"), (1.0, 10 * TENTH), strict=True):
        case = engine["case"]
        assert (engine["status"], case["precision"], case["backend"]) == ("ok", precision, "onnxruntime")
        image, both = engine["image_accuracy"]["metrics"], engine["accuracy"]["metrics"]
        assert image["abs_rel"] == pytest.approx(error / 2 / 3, rel=1e-6)
        assert image["sq_rel"] == pytest.approx(error**2 / 2 / 3, rel=1e-6)
        assert image["rmse"] == pytest.approx(error / sqrt(3), rel=1e-6)
        assert image["bias"] == pytest.approx(error / 3, rel=1e-6)
        assert [image[f"delta{n}"] for n in (1, 2, 3)] == pytest.approx([2 / 3, 1, 1])
        assert engine["accuracy"]["samples"] == 2
        assert both["abs_rel"] == pytest.approx((error / 2 / 3 + 2 / 4 / 4) / 2, rel=1e-6)
        assert both["rmse"] == pytest.approx((error / sqrt(3) + 2 / sqrt(4)) / 2, rel=1e-6)
        assert "lone" in engine["accuracy"]["reasons"]["unmatched_files"]
        assert engine["latency"]["iterations"] == 20
        assert (tmp_path / "out" / case["case_id"] / "iterations.parquet").exists()
    first, second = (engine["difference"] for engine in found["engines"])
    difference = (1.0 - 10 * TENTH) / 7
    assert first is None
    assert second["max"] == pytest.approx(difference, rel=1e-3)
    assert (second["mae"], second["rmse"]) == pytest.approx((difference / 4, difference / 2), rel=1e-3)
    assert all((tmp_path / "out" / name).stat().st_size > 500 for name in PICTURES)
    whole = EngineComparison.model_validate(found)
    maps, errors, differences = map_tiles(whole, tmp_path / "out")
    assert [tile.title for tile in maps] == ["input", "fp32", "fp16"]
    assert errors[1].top == errors[2].top
    assert not isinstance(errors[1].values, str)
    assert np.nan_to_num(errors[1].values, nan=9).tolist() == [[0, 0.5], [0, 9]]
    assert differences[2].top == pytest.approx(difference, rel=1e-3)
    assert not (tmp_path / "out" / "fp32" / "maps").exists()


@pytest.mark.slow
def test_engines_that_cannot_run_are_rows_and_nothing_without_a_number_replaces_numbers(
    tmp_path: Path,
) -> None:
    """A damaged file beside a good one; then the damaged one alone; then both again, without what drew them."""
    good, torn = random_net(tmp_path / "good.onnx"), tmp_path / "torn.onnx"
    torn.write_bytes(good.read_bytes()[:50])
    Image.fromarray(np.zeros((12, 10, 3), np.uint8)).save(tmp_path / "a.png")
    out = tmp_path / "out"
    assert compare(tmp_path, [torn, good], "a.png", "--input-size", "16x24") == 1
    failed, fine = result_of(out)["engines"]
    assert (failed["status"], failed["latency"], fine["status"]) == ("failed", None, "ok")
    assert failed["reason"]
    assert fine["output"]["shape"] == [16, 24]

    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert compare(tmp_path, [torn], "a.png") == 1
    assert {path: path.read_bytes() for path in before} == before
    assert result_of(out / "failed")["engines"][0]["status"] == "failed"
    assert not (out / ".running").exists()

    settings = CompareSettings(image=tmp_path / "a.png", input_size=(16, 16), warmup=1, iterations=10, threads=1)
    compare_engines([str(good)], settings, out, device="cpu")
    assert not any((out / name).exists() for name in PICTURES), "pictures of an earlier comparison"


# ---- what is found before anything runs ----


@pytest.mark.parametrize(
    "arguments",
    [
        "--image none.png",
        "--metric-gt-dir .",
        "--input-size 0",
        "--mean 1,2",
        "--min-depth 5 --max-depth 4",
        "--gpu-sample-interval 0",
        "--metric nothing",
        "--backends onnxruntime torch",
        "--engines none.onnx",
    ],
)
def test_a_wrong_command_line_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    assert compare(tmp_path, [random_net(tmp_path / "a.onnx")], "a.png", *arguments.split()) == 2
    option, value, *_ = arguments.split()
    assert option in (said := capsys.readouterr().err) or value in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_ground_truth_that_cannot_be_read_starts_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gt.npy").write_bytes(content)
    engine = random_net(tmp_path / "a.onnx")
    assert compare(tmp_path, [engine], write_image(tmp_path), "--gt", tmp_path / "gt.npy") == 3
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_ground_truth_that_nothing_could_be_compared_with_is_a_failed_check(tmp_path: Path) -> None:
    """All of it is invalid: the engine is timed, and the exit code says that there are no errors."""
    np.save(tmp_path / "gt.npy", np.zeros((8, 8), np.float32))
    engine = random_net(tmp_path / "a.onnx")
    assert compare(tmp_path, [engine], write_image(tmp_path), "--gt", tmp_path / "gt.npy", "--input-size", 8) == 3
    assert result_of(tmp_path / "out")["engines"][0]["status"] == "ok"


def test_engines_get_names_and_backends_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    paths = [random_net(tmp_path / "net a.onnx"), random_net(tmp_path / "x" / "net a.onnx")]
    settings, gpu = CompareSettings(image=tmp_path / "a.png"), None
    found = [one.case for one in engine_specs([str(path) for path in paths], settings, gpu)]
    assert [(one.model, one.backend) for one in found] == [("net_a", "onnxruntime"), ("net_a_2", "onnxruntime")]
    (one,) = engine_specs(["my.models:create"], settings, gpu, ["torch/compile"])
    assert (one.case.model, one.case.backend, one.case.mode) == ("models", "torch", "compile")
    with pytest.raises(UsageError, match="backend"):
        engine_specs(["my.models:create"], settings, gpu)


def test_the_gpu_is_found_by_its_nvml_index() -> None:
    gpus = (GpuRecord(index=0, uuid="GPU-a"), GpuRecord(index=2, uuid="GPU-c"))
    facts, none = GpuFacts(gpus=gpus), GpuFacts(problem="no library")
    assert [choose_gpu(facts, index, "auto") for index in (None, 2)] == [*gpus]
    assert (choose_gpu(facts, 2, "cpu"), choose_gpu(none, None, "auto")) == (None, None)
    with pytest.raises(UsageError, match="'1'"):
        choose_gpu(facts, 1, "auto")
    with pytest.raises(UsageError, match="no library"):
        choose_gpu(none, None, "cuda")


# ---- pictures ----

BEGIN, SECOND = 1_700_000_000_000_000_000, 1_000_000_000


def case_called(name: str) -> BenchCase:
    return made_up("onnxruntime").case.model_copy(update={"case_id": name})


def comparison(folder: Path, names: tuple[str, ...], uuid: str | None, **more: Any) -> EngineComparison:
    fields = {"status": "ok", "telemetry_unix_ns": (BEGIN, BEGIN + 5 * SECOND), **more}
    engines = [EngineResult(case=case_called(name), engine=f"{name}.onnx", **fields) for name in names]
    return EngineComparison(
        created="2024-01-01", machine=MachineRecord(hostname="h"), gpu_index=0, gpu_uuid=uuid,
        gpu_reason=None if uuid else "there is no GPU", settings=CompareSettings(image=folder / "a.npy"),
        engines=engines,
    )  # fmt: skip


def wave(value: float, at_ns: int) -> float:
    return value * (1 - ((at_ns - BEGIN) // SECOND % 2) / 10)


def write_telemetry(folder: Path, **metrics: float) -> None:
    folder.mkdir(parents=True)
    log, begin, end = SampleBuilder(), BEGIN - SECOND, BEGIN + 6 * SECOND
    for metric, value in metrics.items():
        log.polled("GPU-a", metric, partial(wave, value), begin, end, update_period_ns=100_000_000)
    write_sample_log(folder / "telemetry.parquet", log.build())


def test_the_gpu_picture_has_a_line_an_engine(tmp_path: Path) -> None:
    write_telemetry(tmp_path / "fast", gpu_utilization_percent=60, memory_used_bytes=6e9, sm_clock_mhz=1920,
                    memory_utilization_percent=30)  # fmt: skip
    write_telemetry(tmp_path / "slow", gpu_utilization_percent=95, memory_used_bytes=9e9, sm_clock_mhz=1885)
    picture = gpu_picture(comparison(tmp_path, ("fast", "slow", "gone"), "GPU-a"), tmp_path)
    busy = lines(picture, "compute (%)")
    assert set(busy) == {"fast", "slow"}
    assert {value for _, value in busy["slow"]} == {95.0, 85.5}
    assert {value for line in lines(picture, "memory access (%)").values() for _, value in line} == {30.0, 27.0}
    assert min(at for line in lines(picture, "SM clock (MHz)").values() for at, _ in line) >= -1.0
    assert "mark" in drawn(picture)


def test_boxes_are_percentiles_of_all_iterations_and_the_mean_has_its_interval(tmp_path: Path) -> None:
    found = comparison(tmp_path, ("slow", "gone"), None)
    (tmp_path / "slow").mkdir()
    values = np.arange(1.0, 102.0)
    ns = (values * 1e6).astype(np.int64)
    np.savez(tmp_path / "slow" / "iterations.npz", wall_ns=ns, start_ns=ns.cumsum(), warmup_ns=ns[:3])
    write_iterations(tmp_path / "slow")
    stats = latency_stats(values, 0)
    assert stats is not None
    slow, gone = found.engines
    slow = slow.model_copy(update={"latency": stats})
    gone = gone.model_copy(update={"status": "failed", "reason": "it broke"})
    picture = speed_picture(found.model_copy(update={"engines": [slow, gone]}), tmp_path)
    (box,) = picture.rows["speed_benchmark_boxes"]
    assert [box[name] for name in ("p5", "q1", "median", "q3", "p95")] == [6.0, 26.0, 51.0, 76.0, 96.0]
    (mean,) = picture.rows["speed_benchmark_means"]
    assert (mean["value"], mean["low"], mean["high"]) == (51.0, stats.mean.low, stats.mean.high)
    assert picture.rows["speed_benchmark_states"] == [{"engine": "gone", "status": "failed"}]


@pytest.mark.slow
def test_the_second_pass_reads_the_gpu_by_its_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes and the real sampler on the record of an H200; the engine itself computes on the CPU."""
    for name, value in replay_environment(Path(__file__).parents[2] / "nvml" / "h200.json.gz").items():
        monkeypatch.setenv(name, value)
    (gpu,) = find_gpus().gpus
    script = FakeScript(execute_ms=1.0, layout=(1, None, None))
    np.save(tmp_path / "a.npy", np.ones((1, 8, 8), np.float32))
    settings = CompareSettings(image=tmp_path / "a.npy", input_size=(8, 8), iterations=10, sample_interval_s=0.05)
    model = write_model(tmp_path / "maps.py", script)
    found, _ = compare_engines([model], settings, tmp_path / "out", backends=[FAKE_BACKEND])
    (one,) = found.engines
    assert (one.status, one.reason, one.case.gpu_index, found.gpu_reason) == ("ok", None, gpu.index, None)
    log = read_sample_log(tmp_path / "out" / one.name / "telemetry.parquet")
    clock = log.get(gpu.uuid, "sm_clock_mhz")
    assert clock is not None
    begin, end = known(one.telemetry_unix_ns)
    assert end > begin
    assert len(gpu_picture(found, tmp_path / "out").rows) == 4
    print_blocks(Console(), engines_view(found))


def timed(name: str, milliseconds: float, noise: float, drop: float | None = None) -> EngineResult:
    values = milliseconds + noise * np.random.default_rng(len(name)).normal(size=1000)
    return EngineResult(case=case_called(name), status="ok", latency=latency_stats(values, 0), clock_drop_percent=drop)


def test_a_clock_that_fell_and_a_speed_up_that_may_be_chance_are_warned_of() -> None:
    engines = [timed("a", 10, 5, drop=5.0), timed("bb", 10.1, 5, drop=5.1), timed("ccc", 5, 1)]
    fell, chance = remarks_of(engines)
    assert fell.startswith("bb: ")
    assert "5.1 %" in fell
    assert chance.startswith("bb: ")
