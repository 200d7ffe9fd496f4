"""The scripts that a newcomer runs first: what they say where something is missing, and that a second run is quick."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.trace_builder import TraceBuilder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the scripts, and nothing that they could install."""
    shutil.copytree(ROOT / "scripts", tmp_path / "checkout" / "scripts")
    for name in (
        "pyproject.toml",
        "tests/requirements-check.txt",
        "tests/requirements.txt",
        "samples/ocr_existing_pipeline/requirements.txt",
    ):
        target = tmp_path / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path / "checkout"


def program(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run(script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(script)], env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=280
    )


@pytest.mark.parametrize("script", ["demo", "test"])
def test_an_old_python_is_named_with_the_version_needed(script: str, checkout: Path, tmp_path: Path) -> None:
    old = program(tmp_path / "python3.9", 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac')
    done = run(checkout / "scripts" / script, PYTHON=str(old))
    assert done.returncode == 1
    assert done.stderr == f"{script}: {old} is Python 3.9.2; perfharness needs Python 3.10 or newer\n"


def test_no_new_enough_python_on_the_path_says_how_to_name_one(checkout: Path, tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    program(bin_folder / "python3", 'case "$1" in --version) echo Python 3.8.10;; *) exit 1;; esac')
    for tool in ("bash", "env", "dirname", "basename", "realpath"):
        (bin_folder / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    done = run(checkout / "scripts" / "demo", PATH=str(bin_folder), PYTHON="")
    assert done.returncode == 1
    assert "no Python 3.10 or newer on PATH (python3 is: Python 3.8.10)" in done.stderr
    assert "PYTHON=/path/to/python3.12 scripts/demo" in done.stderr


def test_a_python_that_is_not_there(checkout: Path) -> None:
    done = run(checkout / "scripts" / "demo", PYTHON="/nowhere/python3")
    assert done.returncode == 1
    assert "PYTHON=/nowhere/python3 is not there" in done.stderr


def test_a_python_without_venv_names_debians_package(checkout: Path, tmp_path: Path) -> None:
    body = f'case "$*" in *ensurepip*) exit 1;; *) exec "{sys.executable}" "$@";; esac'
    done = run(checkout / "scripts" / "demo", PYTHON=str(program(tmp_path / "python3", body)))
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr
    assert not (checkout / ".venv-demo").exists()


@pytest.mark.slow
def test_packages_out_of_reach_are_said_and_tried_again(checkout: Path) -> None:
    for _ in range(2):
        done = run(checkout / "scripts" / "demo", PYTHON=sys.executable, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
        assert done.returncode == 1
        assert "demo: the packages could not be installed (see above); is a package index in reach?" in done.stderr


def test_the_demo_measures_the_toy_pipeline_in_a_bare_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "bare"
    parts = ("pyproject.toml", "README.md", "LICENSE", "perfharness", "launcher", "samples", "scripts")
    checkout.mkdir()
    for name in parts:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    bare = {"PYTHON": sys.executable, "PYTHONPATH": "", "COLUMNS": "120"}
    done = run(checkout / "scripts" / "demo", **bare)
    if "is a package index in reach?" in done.stderr and not os.environ.get("CI"):
        pytest.skip("no package index in reach, from which the demo could install")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stage_1" in done.stdout
    assert f"Results in {checkout / 'perfharness-demo'}:" in done.stdout
    mean = json.loads((checkout / "perfharness-demo" / "benchmark_mean.json").read_text(encoding="utf-8"))
    batch = mean["stats_minus_warmup"]["toy_pipeline"]["pipeline"]["batch"]
    assert batch["cpu_time"]["count"] == 2  # one batch of three in each of two processes
    assert batch["stage_1"]["cpu_time"]["min"] >= 300.0
    for index in range(2):
        assert f"proc_{index}_gpu_0/benchmark.json" in done.stdout
    again = run(checkout / "scripts" / "demo", **bare, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert again.returncode == 0, again.stderr
    assert "Installing" not in again.stdout


@pytest.mark.slow
def test_an_environment_is_made_once_and_again_when_its_requirements_change(checkout: Path) -> None:
    program(
        checkout / "scripts" / "try",
        "exec bash -c '. scripts/environment.sh; find_python; make_environment made pyproject.toml; "
        "mark_environment made; echo $fresh'",
    )

    def fresh() -> str:
        done = subprocess.run(
            ["scripts/try"],
            cwd=checkout,
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert [fresh(), fresh()] == ["yes", "no"]
    with (checkout / "pyproject.toml").open("a", encoding="utf-8") as project:
        project.write("# another requirement\n")
    assert [fresh(), fresh()] == ["yes", "no"]


def loaded(name: str) -> ModuleType:
    """A script as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    return loaded("gpu_check")


@pytest.fixture(scope="module")
def explain_check() -> ModuleType:
    return loaded("explain_check")


def trace(path: Path, kernels: int, copies: int) -> Path:
    """A trace with this many GPU operations and no table for the kinds that there are none of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        for table, count in (("CUPTI_ACTIVITY_KIND_KERNEL", kernels), ("CUPTI_ACTIVITY_KIND_MEMCPY", copies)):
            if count:
                database.execute(f"CREATE TABLE {table} (start INTEGER)")
                database.executemany(f"INSERT INTO {table} VALUES (?)", [(i,) for i in range(count)])
        database.commit()
    return path


Found = dict[str, list[int]]


def test_results_are_found_whatever_the_number_of_the_gpu(
    gpu_check: ModuleType, explain_check: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "explain" / "proc_0_gpu_3"
    folder.mkdir(parents=True)
    (folder / "benchmark.json").write_text('{"data": {}}')
    (folder / "trace.sqlite").touch()
    assert gpu_check.result_of(tmp_path / "explain", 0) == {"data": {}}
    assert gpu_check.trace_of(tmp_path / "explain", 0) == explain_check.trace_of(tmp_path) == folder / "trace.sqlite"


@pytest.mark.parametrize(
    ("embedded_kernels", "embedded_stages", "failures"),
    [
        (7, {}, []),
        (6, {}, ["operations, whole process"]),
        (7, {"inference": [3, 0]}, ["operations in inference"]),
        (7, {"inference": [0]}, ["operations in inference"]),
        (7, {"preprocess": [0, 0]}, ["operations in preprocess"]),
        (7, None, ["operations by stage"]),  # the trace cannot tell
    ],
)
def test_gpu_check_finds_operations_that_differ(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedded_kernels: int,
    embedded_stages: Found | None, failures: list[str],
) -> None:  # fmt: skip
    for tracer, kernels in (("nsys", 7), ("embedded", embedded_kernels)):
        for index in range(2):
            trace(tmp_path / tracer / f"proc_{index}_gpu_0" / "trace.sqlite", kernels, copies=2)

    def stages(path: Path) -> Found:
        if "embedded" in path.parts and embedded_stages is None:
            raise gpu_check.CannotTellError("GPU work of 'inference' could not be traced")
        usual = {"decode": [0, 0], "preprocess": [2, 2], "inference": [0, 3], "postprocess": [2, 2]}
        return usual | ((embedded_stages or {}) if "embedded" in path.parts else {})

    monkeypatch.setattr(gpu_check, "operations_by_stage", stages)
    runs = {tracer: tmp_path / tracer for tracer in ("nsys", "embedded")}
    failed = [check for check in gpu_check.compare_operations(runs) if not check.passed]
    assert [check.name for check in failed] == [f"process {index}: {name}" for index in range(2) for name in failures]
    assert embedded_stages is not None or "could not be traced" in failed[0].detail
    nothing = {stage: [0, 0] for stage in gpu_check.STAGES}
    monkeypatch.setattr(gpu_check, "operations_by_stage", lambda path: nothing)
    missing = {check.name for check in gpu_check.compare_operations(runs) if not check.passed}
    assert {f"process 1: operations in {stage}" for stage in ("preprocess", "inference", "postprocess")} <= missing


def test_gpu_check_leaves_warm_up_out_of_the_times(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def batch(time_ms: float, warmup: bool) -> dict[str, object]:
        stages = {stage: {"gpu_time": time_ms, "gpu_busy_time": time_ms / 2} for stage in gpu_check.GPU_STAGES}
        return {**stages, "warmup": warmup, "cpu_time": 1.0}

    batches = {"batch_0": batch(9.0, True), "batch_1": batch(1.0, False), "batch_2": batch(2.0, False)}
    result = {"data": {"image_classification": {"pipeline": {**batches, "cpu_time": 3.0}}}}
    monkeypatch.setattr(gpu_check, "result_of", lambda folder, index: result)
    for key, times in (("gpu_time", [1.0, 2.0]), ("gpu_busy_time", [0.5, 1.0])):
        assert gpu_check.stage_times_ms(tmp_path, 0, key) == dict.fromkeys(gpu_check.GPU_STAGES, times)
    assert (gpu_check.shortest([1.0, 2.0]), gpu_check.median([1.0, 2.0])) == (1.0, 1.5)


@pytest.mark.parametrize(
    ("nsys_ms", "embedded_ms", "passes"),
    [
        (1.0, 1.0, True), (1.0, 1.049, True), (1.0, 1.051, False), (1.0, 0.951, True), (1.0, float("nan"), False),
        (0.030, 0.049, True), (0.030, 0.051, False),  # 20 us, where five percent are less
    ],
)  # fmt: skip
def test_gpu_check_allows_five_percent_or_twenty_microseconds(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, nsys_ms: float, embedded_ms: float, passes: bool
) -> None:
    times = {"nsys": nsys_ms, "embedded": embedded_ms}
    monkeypatch.setattr(
        gpu_check,
        "stage_times_ms",
        lambda folder, index, key: {stage: [times[folder.name]] for stage in gpu_check.GPU_STAGES},
    )
    checks = gpu_check.compare_times({tracer: Path(tracer) for tracer in times})
    assert [check.passed for check in checks] == [passes] * 12


def sampled(folder: Path, shift: int) -> Path:
    """Kernels run for 250 us of each 500; a reading has their share of its period, `shift` ns after its begin."""
    builder = TraceBuilder()
    type_id = builder.gpu_metric_names(
        ["GPC Clock Frequency [MHz]", "SMs Active [Throughput %]", "Tensor Active [Throughput %]"]
    )
    for start in range(0, 20_000_000, 500_000):
        builder.kernel((start, start + 10), (start + 20_000, start + 270_000))
    for end in range(100_000, 20_000_000, 100_000):
        inside = [max(0, min(end, at + 270_000) - max(end - 100_000, at + 20_000)) for at in range(0, end, 500_000)]
        share = sum(inside) // 1000
        builder.gpu_metric_reading(
            end - 100_000 + shift, (1_755_000_000 if share else 345_000_000, share, share), type_id=type_id
        )
    trace = folder / "nsys" / "explain" / "proc_0_gpu_0" / "trace.sqlite"
    trace.parent.mkdir(parents=True)
    return builder.write(trace)


@pytest.mark.parametrize(("shift", "passes"), [(0, True), (-100_000, False), (100_000, False)])
def test_explain_check_finds_readings_that_belong_to_another_period(
    explain_check: ModuleType, tmp_path: Path, shift: int, passes: bool
) -> None:
    trace = sampled(tmp_path, shift)
    (check,) = explain_check.check_periods(tmp_path)
    assert check.passed is passes, check.detail
    assert explain_check.mean_clock_hz(trace) == 1_755_000_000


def test_a_program_that_failed_is_not_scored(tmp_path: Path) -> None:
    (tmp_path / "proc_0_gpu_0").mkdir()
    (tmp_path / "proc_0_gpu_0" / "stderr.log").write_text("Traceback\nRuntimeError: no GPU\n", encoding="utf-8")
    ends = [{"folder": "proc_0_gpu_0", "ended": "failed"}, {"folder": "proc_1_gpu_0", "ended": "ok"}]
    (tmp_path / "manifest.json").write_text(json.dumps({"processes": ends}), encoding="utf-8")
    failed_processes = loaded("score_diagnosis").failed_processes
    assert failed_processes(tmp_path) == "proc_0_gpu_0: failed: RuntimeError: no GPU"
    (tmp_path / "manifest.json").write_text(json.dumps({"processes": ends[1:]}), encoding="utf-8")
    assert failed_processes(tmp_path) == ""


def written_run(folder: Path, *stages_of_processes: list[str], findings: tuple[tuple[str, str], ...]) -> Path:
    """Results with these stages, and findings of these severities."""
    for index, names in enumerate(stages_of_processes):
        diagnosis = {"stages": [{"path": ["p", name]} for name in names]}
        (folder / f"proc_{index}_gpu_0").mkdir(parents=True)
        path = folder / f"proc_{index}_gpu_0" / "benchmark.json"
        path.write_text(json.dumps({"diagnosis": diagnosis}), encoding="utf-8")
    found = [{"severity": severity, "message": message} for severity, message in findings]
    (folder / "benchmark_mean.json").write_text(json.dumps({"meta": {"findings": found}}), encoding="utf-8")
    return folder


def test_a_program_of_which_nothing_was_recorded_is_not_scored(tmp_path: Path) -> None:
    why_nothing_was_recorded = loaded("score_diagnosis").why_nothing_was_recorded
    findings = (("warning", "records no range of this nvtx"), ("note", "aside"), ("error", "no range"))
    nothing = written_run(tmp_path / "nothing", [], [], findings=findings)
    assert why_nothing_was_recorded(nothing).endswith(": records no range of this nvtx | no range")
    of_one = written_run(tmp_path / "of_one", [], ["stage"], findings=findings)  # of a worker there may be nothing
    assert why_nothing_was_recorded(of_one) == ""


@pytest.mark.slow
@pytest.mark.nsys
def test_an_nvtx_that_nsys_does_not_record_is_named_before_and_scores_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "score_diagnosis", "--tracer", "nsys", "--passes", "one",
         "--only", "deepcopy_params", "-o", tmp_path],
        env={**os.environ, "PERFHARNESS_TEST_NVTX_SITE": ""}, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    (result,) = json.loads((tmp_path / "scores.json").read_text())
    named = version("nvtx")  # which may be one that this nsys records
    assert (named in done.stderr) is (result["score"] is None) is (named in (result["error"] or ""))
