"""`perfharness bench sweep` with real processes of the fake backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfharness.model.bench_search import SWEEP_NAME, SweepFile
from perfharness.testing.fake_backend import FAKE_BACKEND, FakeScript, write_model


def run(tmp_path: Path, script: FakeScript, *options: str) -> tuple[subprocess.CompletedProcess[str], SweepFile | None]:
    text = write_model(tmp_path / "fake_model.py", script)
    out = tmp_path / "out"
    done = subprocess.run(
        [
            sys.executable, "-m", "perfharness", "bench", "sweep", "--model", text, "--backend", FAKE_BACKEND,
            "--device", "cpu", "--warmup", "2", "--iterations", "30", "--passes", "latency", "-o", str(out), *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )  # fmt: skip
    file = out / SWEEP_NAME
    return done, SweepFile.model_validate_json(file.read_text()) if file.exists() else None


def test_a_sweep_ends_where_memory_does(tmp_path: Path) -> None:
    done, found = run(tmp_path, FakeScript(execute_ms=0.5, oom_at_batch=3), "--largest", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    assert found is not None
    (cell,) = found.cells
    assert (cell.batch_sizes, cell.ended_by, cell.ended_at_batch) == ([1, 2, 4], "out-of-memory", 4)
    assert [case.status for case in found.cases] == ["ok", "ok", "out-of-memory"]
    assert "a batch of 4 is out-of-memory" in done.stdout
    assert len(list((tmp_path / "out" / "cases").iterdir())) == 3
    again, _ = run(tmp_path, FakeScript(), "--largest", "2")
    assert again.returncode == 2, "results are not written over"


def test_the_memory_limit_ends_a_sweep_and_is_named(tmp_path: Path) -> None:
    script = FakeScript(execute_ms=0.5, host_bytes_per_item=128 << 20)
    done, found = run(tmp_path, script, "--largest", "8", "--memory-limit", "500MB")
    assert found is not None, done.stdout + done.stderr
    (cell,) = found.cells
    assert (cell.ended_by, cell.ended_at_batch) == ("memory-limit", 4)
    assert cell.reason is not None
    assert "0.500 GB" in cell.reason


def test_streams_are_measured_with_each_batch_size(tmp_path: Path) -> None:
    done, found = run(tmp_path, FakeScript(execute_ms=2), "--largest", "2", "--streams", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert found is not None
    assert [case.streams and case.streams.streams for case in found.cases] == [2, 2]
    for batch in (1, 2):
        assert f"batch {batch}: 2 streams at once: " in done.stdout
    assert "2 instances" not in done.stdout


def test_the_largest_batch_within_a_target_and_its_proof(tmp_path: Path) -> None:
    """1 ms, then 100: so far apart that a busy machine changes nothing."""
    done, found = run(
        tmp_path, FakeScript(execute_ms=0, by_batch_ms={1: 1, 2: 1, 3: 100, 4: 100}), "--largest", "4",
        "--latency-target", "50", "--latency-percentile", "p50",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert found is not None
    target = found.cells[0].target
    assert target is not None
    assert (target.batch_size, target.proven, target.ended_by) == (2, True, "latency")
    assert "a batch of 2 meets a p50 of 50 ms" in done.stdout


def test_a_target_that_none_meets_is_exit_3(tmp_path: Path) -> None:
    done, found = run(
        tmp_path, FakeScript(execute_ms=20), "--largest", "2", "--latency-target", "1", "--latency-percentile", "p50"
    )
    assert done.returncode == 3
    assert found is not None
    assert "no batch size is known to meet" in done.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--latency-target", "3", "--latency-percentile", "p90"), "is none of mean, p50, p95, p99"),
        (("--smallest", "8", "--largest", "4"), "no batch sizes from 8 to 4"),
    ],
)
def test_a_wrong_command_line_starts_nothing(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    done, found = run(tmp_path, FakeScript(), *options)
    assert done.returncode == 2
    assert says in done.stdout + done.stderr
    assert found is None
