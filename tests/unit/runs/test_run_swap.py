"""A run put in place, with faults at every file operation: the old run or the new one is whole, at the next command."""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from perfharness.errors import LaunchError
from perfharness.run_swap import holds_numbers, settle
from perfharness.runs.files import process_traces
from perfharness.runs.files.run_folder import ReadAs, analyze_run, read_manifest
from perfharness.trace import open_trace
from perfharness_launcher.staging import Staging, staging, unfinished_runs
from tests.unit.file_faults import Killed, count_operations, fault
from tests.unit.run_records import manifest_of, process
from tests.unit.runs.test_run_folder import load, whole_run

OLD = (
    "benchmark_mean.json",
    "manifest.json",
    "proc_0_gpu_0",
    "proc_1_gpu_0",
    "telemetry.parquet",
    "telemetry_host.png",
)
NEW = ("benchmark_mean.json", "manifest.json", "proc_0_gpu_0", "proc_2_gpu_0")
WITH_NUMBERS = '{\n  "mean_data": {\n    "toy": {}\n  }\n}\n'
WITHOUT = '{\n  "mean_data": {}\n}\n'


def write_run(folder: Path, names: tuple[str, ...], label: str, results: str = WITH_NUMBERS) -> None:
    for name in names:
        if name.startswith("proc_"):
            (folder / name).mkdir(parents=True)
            (folder / name / "label").write_text(label)
        else:
            (folder / name).write_text(results if name == "benchmark_mean.json" else label)


def labels(out: Path) -> dict[str, str]:
    """What a reader of the folder sees."""
    return {
        path.name: (path / "label" if path.is_dir() else path).read_text()
        for path in sorted(out.iterdir())
        if not path.name.startswith(".") and path.name != "benchmark_mean.json"
    }


def expected(names: tuple[str, ...], label: str) -> dict[str, str]:
    return {"notes.txt": "mine", **{name: label for name in names if name != "benchmark_mean.json"}}


def prepared(tmp_path: Path) -> tuple[Path, Staging]:
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    stage = Staging(out, "r2")
    stage.path.mkdir(parents=True)
    write_run(out, OLD, "old")
    (out / "notes.txt").write_text("mine")
    write_run(stage.path, NEW, "new")
    return out, stage


@pytest.mark.parametrize("error", [None, errno.ENOSPC, errno.EACCES])
def test_a_fault_at_any_step_leaves_one_whole_run(tmp_path: Path, error: int | None) -> None:
    out, stage = prepared(tmp_path)
    steps = count_operations(out, lambda: stage.finish(whole=True))
    assert labels(out) == expected(NEW, "new")
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []
    assert steps > 20
    seen = set()
    for at in range(1, steps + 1):
        out, stage = prepared(tmp_path)
        with contextlib.suppress(Killed, LaunchError), fault(out, at, error):
            stage.finish(whole=True)
        settle(out)
        found = labels(out)
        assert found in (expected(OLD, "old"), expected(NEW, "new")), at
        seen.add(found["manifest.json"])
        if found == expected(OLD, "old"):  # the new one is kept where it was written
            assert (stage.path / "manifest.json").read_text() == "new"
        with staging(out, "r3") as later:
            later.discard()
        assert not list(out.glob(".perfharness-[!r]*")), at
        assert unfinished_runs(out) in ([], [stage.path])
    assert seen == {"old", "new"}


def test_a_second_kill_while_the_first_is_mended(tmp_path: Path) -> None:
    out, stage = prepared(tmp_path)
    steps = count_operations(out, lambda: stage.finish(whole=True))
    for first in range(1, steps + 1):
        for second in range(1, steps + 1, 23):
            out, stage = prepared(tmp_path)
            with contextlib.suppress(Killed), fault(out, first, None):
                stage.finish(whole=True)
            with contextlib.suppress(Killed), fault(out, second, None):
                settle(out)
            settle(out)
            assert labels(out) in (expected(OLD, "old"), expected(NEW, "new")), (first, second)


@pytest.mark.parametrize(("whole", "results"), [(True, WITHOUT), (False, WITH_NUMBERS)])
def test_a_run_without_numbers_or_not_whole_lies_beside_the_good_one(tmp_path: Path, whole: bool, results: str) -> None:
    out, stage = prepared(tmp_path)
    (stage.path / "benchmark_mean.json").write_text(results)
    place = stage.finish(whole=whole)
    assert place == out / "run-r2"
    assert labels(out / "run-r2") == {
        name: label for name, label in expected(NEW, "new").items() if name != "notes.txt"
    }
    shutil.rmtree(place)
    assert labels(out) == expected(OLD, "old")


@pytest.mark.parametrize("old", [WITHOUT, None])
def test_a_run_without_numbers_replaces_one_without(tmp_path: Path, old: str | None) -> None:
    out, stage = prepared(tmp_path)
    if old is None:
        (out / "benchmark_mean.json").unlink()
    else:
        (out / "benchmark_mean.json").write_text(old)
    (stage.path / "benchmark_mean.json").write_text(WITHOUT)
    assert stage.finish(whole=True) == out
    assert labels(out) == expected(NEW, "new")


def test_numbers_of_one_process_count(tmp_path: Path) -> None:
    write_run(tmp_path, OLD, "old", WITHOUT)
    assert not holds_numbers(tmp_path)
    (tmp_path / "proc_1_gpu_0" / "benchmark.json").write_text('{\n  "data": {\n    "toy": {}\n  }\n}\n')
    assert holds_numbers(tmp_path)


@pytest.mark.parametrize("error", [None, errno.ENOSPC])
def test_analyze_replaces_all_results_or_none(tmp_path: Path, error: int | None) -> None:
    """Faults while a run is analysed again with another warm-up."""
    out = tmp_path / "out"
    out.mkdir()
    manifest = whole_run(out)
    (out / "manifest.json").write_text(manifest.model_dump_json())
    analyze_run(out, manifest)
    good = shutil.copytree(out, tmp_path / "good")
    steps = count_operations(out, lambda: analyze_run(out, manifest, ReadAs(warmup_batches=2)))
    for at in range(1, steps + 1, 4):
        shutil.rmtree(out)
        shutil.copytree(good, out)
        with contextlib.suppress(Killed), fault(out, at, error):
            analyze_run(out, manifest, ReadAs(warmup_batches=2))
        read_manifest(out)
        files = [out / "benchmark_mean.json", *sorted(out.glob("proc_*/benchmark.json"))]
        assert len(files) == 3
        assert len({load(file)["meta"]["warmup_batches"] for file in files}) == 1, at


def test_an_interrupt_while_traces_are_read_leaves_the_old_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the second of two traces is read."""
    manifest = whole_run(tmp_path)
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    analyze_run(tmp_path, manifest)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    read = []

    def interrupted(path: Path, *args: Any, **kwargs: Any) -> Any:
        read.append(path)
        if len(read) == 2:
            raise KeyboardInterrupt
        return open_trace(path, *args, **kwargs)

    monkeypatch.setattr(process_traces, "open_trace", interrupted)
    assert run(["analyze", str(tmp_path), "-w", "2"]) == 1
    assert len(read) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def delete_trace(out: Path) -> None:
    (out / "proc_1_gpu_0" / "trace.sqlite").unlink()


def cut_trace(out: Path) -> None:
    trace = out / "proc_1_gpu_0" / "trace.sqlite"
    trace.write_bytes(trace.read_bytes()[:5000])


def empty_traces(out: Path) -> None:
    for trace in out.glob("proc_*/trace.sqlite"):
        trace.write_bytes(b"")


@pytest.mark.parametrize("spoil", [delete_trace, cut_trace, empty_traces])
def test_old_results_stay_where_traces_are_gone_or_cut(tmp_path: Path, spoil: object) -> None:
    manifest = whole_run(tmp_path)
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    analyze_run(tmp_path, manifest)
    before = {path: path.read_bytes() for path in tmp_path.rglob("benchmark*.json")}
    assert callable(spoil)
    spoil(tmp_path)
    assert run(["analyze", str(tmp_path)]) == 3
    assert {path: path.read_bytes() for path in tmp_path.rglob("benchmark*.json")} == before
    assert not list(tmp_path.glob(".perfharness*"))


def test_results_of_a_run_that_never_had_a_trace_are_made_again(tmp_path: Path) -> None:
    whole_run(tmp_path)
    manifest = manifest_of(process(0), process(1, trace=None, ended="failed"))
    for warmup in (1, 2):
        summary = analyze_run(tmp_path, manifest, ReadAs(warmup_batches=warmup))
        assert "results-kept" not in {finding.code for finding in summary.findings}
        assert load(tmp_path / "benchmark_mean.json")["meta"]["warmup_batches"] == warmup
