"""Samples of threads, read from the files that the sampler writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.host_probe import sample_file
from perfharness.model.host_samples import HostEventKind, HostState
from perfharness.model.manifest import MeasuredProcess, ProcessRecord
from perfharness.model.trace import PID_SHIFT
from perfharness.runs.files.process_traces import traces_of
from perfharness.trace.host_samples import read_host_probe
from tests.support.sample_files import MS, new_file, recorded_in
from tests.unit.run_records import manifest_of


@pytest.mark.parametrize(
    ("recorded", "read"),
    [
        ("C.run.<locals>.<dictcomp>", "C.run"),
        ("run.<locals>.<genexpr>.<locals>.<listcomp>", "run"),
        ("run.<locals>.<lambda>", "run.<locals>.<lambda>"),
        ("<listcomp>", "<listcomp>"),
    ],
)
def test_a_comprehension_is_part_of_its_function(tmp_path: Path, recorded: str, read: str) -> None:
    write_file(tmp_path / "host_samples.log", 100, recorded)
    probe = recorded_in(tmp_path)
    assert [frame.function for frame in probe.probe.samples.frames] == [read]


def test_a_process_has_its_own_samples_and_those_of_all_beside_them(tmp_path: Path) -> None:
    folder = "proc_0_gpu_0"
    (tmp_path / folder).mkdir()
    write_file(tmp_path / folder / "host_samples.log", 100, "serve")
    record = ProcessRecord(
        index=0, gpu_index=0, folder=folder, command=["p"], pid=100, ended="ok", trace="trace.sqlite",
        measured=[MeasuredProcess(folder=folder, launched_index=0, pid=100, trace="trace.sqlite")],
    )  # fmt: skip
    alone = traces_of(tmp_path, manifest_of(record))[folder].host_probe
    write_file(tmp_path / folder / "host_samples_200.log", 200, "decode")
    both = traces_of(tmp_path, manifest_of(record))[folder].host_probe
    assert alone is not None
    assert both is not None
    assert alone.probe.together is None
    assert {thread >> PID_SHIFT for thread in alone.probe.everyone.thread.tolist()} == {100}
    assert {thread >> PID_SHIFT for thread in both.probe.samples.thread.tolist()} == {100}
    assert {thread >> PID_SHIFT for thread in both.probe.everyone.thread.tolist()} == {100, 200}
    assert [frame.function for frame in both.probe.samples.frames] == ["serve"]
    assert [frame.function for frame in both.probe.everyone.frames] == ["serve", "decode"]
    assert both.probe.events.thread.tolist() == alone.probe.events.thread.tolist()


START = ("BaseProcess._bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314)
POPEN = ("Popen._launch", "/usr/lib/python3.11/multiprocessing/popen_fork.py", 71)
LIST = ("f.<locals>.<listcomp>", "a.py", 2)


@pytest.mark.parametrize(
    ("stack", "lines"),
    [
        ([LIST, ("f", "a.py", 1)], [2]),  # of a comprehension and its function one frame is left
        ([LIST, ("dumps", "b.py", 3), ("f", "a.py", 1)], [2, 3, 1]),
        ([("f", "a.py", 4), ("f", "a.py", 1)], [4, 1]),
        ([LIST, LIST, ("f", "a.py", 1)], [2]),
        # of a forked worker, the frames of its parent below the fork are no part of it
        ([("work", "a.py", 5), START, POPEN, ("main", "a.py", 9)], [5, 314]),
        ([("work", "a.py", 5), ("_bootstrap", "a.py", 6), ("main", "a.py", 9)], [5, 6, 9]),
    ],
)
def test_frames_that_are_no_part_of_a_stack(
    tmp_path: Path, stack: list[tuple[str, str, int]], lines: list[int]
) -> None:
    file = new_file(tmp_path / "host_samples.log")
    file.number("stacks", tuple(file.number("frames", frame) for frame in stack))
    file.close()
    recorded = recorded_in(tmp_path)
    samples = recorded.probe.samples
    assert [[samples.frames[number].line for number in stack] for stack in samples.stacks] == [lines]


def write_file(path: Path, pid: int, function: str) -> None:
    file = new_file(path, pid=pid, monotonic_ns=500, unix_ns=10_500)
    frame = file.number("frames", (function, "a.py", 3))
    stack = file.number("stacks", (frame,))
    stage = file.number("stages", ("r", "batch"))
    file.sample(2 * MS, pid + 1, MS, MS, 0, HostState.RUNNING, stack, stage, pid)
    file.flush()
    file.sample(1 * MS, pid, MS, -1, -1, HostState.GIL, -1, -1, 0)
    file.event(MS, 2 * MS, pid, HostEventKind.COLLECTION, 2)
    file.write_json(sample_file.MISSING, ["something"])
    file.close()


def test_files_of_a_process_and_its_children_are_read_as_one(tmp_path: Path) -> None:
    write_file(tmp_path / "host_samples.log", 100, "f")
    write_file(tmp_path / "host_samples_200.log", 200, "g")
    recorded = recorded_in(tmp_path)
    samples = recorded.probe.samples
    assert (recorded.monotonic_ns, recorded.unix_ns, samples.interval_ns) == (500, 10_500, MS)
    assert samples.thread.tolist() == [pid << 24 | tid for pid, tid in ((100, 100), (100, 101), (200, 200), (200, 201))]
    assert samples.gil_holder.tolist() == [0, 100 << 24 | 100, 0, 200 << 24 | 200]
    assert [[samples.frames[n].function for n in samples.stacks[s]] if s >= 0 else [] for s in samples.stack] == [
        [], ["f"], [], ["g"],
    ]  # fmt: skip
    assert [samples.stage_paths[s] if s >= 0 else None for s in samples.stage] == [None, ("r", "batch")] * 2
    assert samples.on_cpu_ns.tolist() == [-1, MS, -1, MS]
    assert recorded.probe.events.detail.tolist() == [2, 2]
    assert recorded.probe.missing == ("something",)
    of_child = recorded_in(tmp_path, 200)
    assert of_child.probe.samples.thread.tolist() == [200 << 24 | 200, 200 << 24 | 201]
    assert of_child.probe.events.thread.tolist() == [200 << 24 | 200]
    assert read_host_probe(tmp_path, 300) is None


def test_of_a_file_that_is_cut_off_whole_chunks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "host_samples.log"
    write_file(path, 100, "f")
    whole = path.read_bytes()
    counts = set()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        recorded = recorded_in(tmp_path)
        assert any(path.name in sentence for sentence in recorded.probe.missing) == (length < len(whole))
        counts.add(len(recorded.probe.samples))
    assert counts == {0, 1, 2}


def test_what_the_system_counted_corrects_late_samples(tmp_path: Path) -> None:
    """The thread ran for 3 ms, was seen once meanwhile, and then seen asleep late: 3 of 5 ms are the first sample's.

    The next stretch ends without a blocked sample, and the other thread's time is not known: those stay.
    """
    file = new_file(tmp_path / "host_samples.log")
    file.sample(1 * MS, 100, 1000, 0, 0, HostState.RUNNING, -1, -1, 0)
    file.sample(5 * MS, 100, 4000, 2500, 500, HostState.SLEEP, -1, -1, 0)
    file.sample(6 * MS, 100, 1000, 0, 0, HostState.SLEEP, -1, -1, 0)
    file.sample(7 * MS, 100, 1000, 300, 0, HostState.RUNNING, -1, -1, 0)
    file.sample(1 * MS, 101, 1000, -1, -1, HostState.RUNNING, -1, -1, 0)
    file.sample(2 * MS, 101, 1000, -1, -1, HostState.UNKNOWN, -1, -1, 0)
    file.close()
    recorded = recorded_in(tmp_path)
    assert recorded.probe.samples.length_ns.tolist() == [3000, 2000, 1000, 1000, 1000, 1000]
    assert recorded.probe.samples.on_cpu_ns.tolist() == [2500, 0, 0, 300, -1, -1]
    assert recorded.probe.samples.runnable_ns.tolist() == [500, 0, 0, 0, -1, -1]


def test_time_that_was_counted_late_is_moved_to_where_it_was_spent(tmp_path: Path) -> None:
    """Four rows on a CPU, then two asleep; the system counted a tick in the third and the rest in the fifth."""
    file = new_file(tmp_path / "host_samples.log")
    states = [HostState.RUNNING] * 4 + [HostState.SLEEP] * 2
    for row, (on_cpu, runnable) in enumerate([(0, 0), (0, 0), (2500, 0), (0, 0), (2000, 400), (0, 0)]):
        file.sample(row * MS, 100, 1000, on_cpu, runnable, states[row], -1, -1, 0)
    file.sample(9 * MS, 101, 1000, 700, 0, HostState.RUNNING, -1, -1, 0)
    file.close()
    recorded = recorded_in(tmp_path)
    samples = recorded.probe.samples
    assert samples.length_ns.tolist() == [1225, 1225, 1225, 1225, 100, 1000, 1000]
    assert samples.on_cpu_ns.tolist() == [825, 1225, 1225, 1225, 0, 0, 700]
    assert samples.runnable_ns.tolist() == [400, 0, 0, 0, 0, 0, 0]
