"""Processes that write into a run store, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from perfharness.runs.store.gather import unix_ns
from perfharness.runs.store.location import parse_location
from perfharness.runs.store.records import CPU, Figure, StoredRun
from perfharness.runs.store.store import RunStore
from tests.integration.launches import CHECKOUT, PATIENCE_S, environment

WRITERS, RUNS_EACH, FIGURES_EACH = 4, 6, 20


def run_of(writer: int, number: int) -> StoredRun:
    created = "2026-01-01T00:00:00+00:00"
    return StoredRun(
        run_id=f"writer_{writer}_{number}",
        kind="launch",
        folder="/runs",
        created=created,
        created_unix_ns=unix_ns(created) + number,
        script="pipeline.py",
        setup="0",
        exit_code=0,
        tags=[f"tag_{writer}"],
        figures=[Figure(path=f"rec/{place}", metric=CPU, mean=float(place)) for place in range(FIGURES_EACH)],
    )


def opened(place: str) -> RunStore:
    location = parse_location(place, "test")
    assert location is not None
    return RunStore(location, create=True)


def write(place: str, writer: int) -> None:
    """Opens the store anew for each run, as launches do; the first makes the schema."""
    sys.stdin.read(1)  # all begin together
    for number in range(RUNS_EACH):
        opened(place).add(run_of(writer, number))


def crash(place: str, writer: int) -> None:
    """Ends in the middle of a transaction, with rows written."""
    from sqlalchemy import event

    store = opened(place)
    event.listen(store._database._engine, "commit", lambda connection: os.kill(os.getpid(), signal.SIGKILL))
    store.add(run_of(writer, 0))


def started(place: str, what: str, writer: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.store_writers", place, what, str(writer)],
        cwd=CHECKOUT, env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def write_together(place: str) -> None:
    """Four writers at once into a store that none of them finds made."""
    writers = [started(place, "write", writer) for writer in range(WRITERS)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("!")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate(timeout=PATIENCE_S)
        assert writer.returncode == 0, errors
    check_written(place)


def check_written(place: str) -> None:
    """All runs are there, each whole."""
    found = {run.run_id: run for run in opened(place).runs(with_figures="all")}
    expected = [run_of(writer, number) for writer in range(WRITERS) for number in range(RUNS_EACH)]
    assert set(found) == {run.run_id for run in expected}
    for run in expected:
        stored = found[run.run_id]
        assert {(one.path, one.mean) for one in stored.figures} == {(one.path, one.mean) for one in run.figures}
        assert stored.tags == run.tags


def crash_and_go_on(place: str) -> None:
    """A writer that was killed leaves nothing of its run, and no lock."""
    store = opened(place)
    before = store.count()
    writer = started(place, "crash", 99)
    writer.communicate("!", timeout=PATIENCE_S)
    assert writer.returncode == -signal.SIGKILL
    assert store.count() == before
    store.add(run_of(99, 1))
    assert [run.run_id for run in store.runs() if run.run_id.startswith("writer_99")] == ["writer_99_1"]


if __name__ == "__main__":
    {"write": write, "crash": crash}[sys.argv[2]](sys.argv[1], int(sys.argv[3]))
