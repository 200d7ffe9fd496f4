"""Programs of several processes: every range that a recorder counted is in its own results.

All ways of starting a process are in one script, so that each tracer needs one launch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfharness import open_run
from perfharness.boot import FOLLOW
from tests.integration.launches import TRACERS_SLOW_UNDER_NSYS, environment, manifest, read, run_to_the_end, tracing

WORK = """
import os, sys, time
from perfharness import PerfRecorder

perf = PerfRecorder("app")


def work(batches):
    with perf.range("loop"):
        for index in range(batches):
            with perf.batch(index, total_items=2), perf.range("stage"):
                time.sleep(0.002)
"""
"""A call makes `1 + 2 * batches` ranges."""


LOSSES = {"trace-missing-ranges", "trace-incomplete", "batches-cut"}


@dataclass(frozen=True)
class Tree:
    """A launch that has ended, and its output."""

    out: Path
    code: int
    output: str

    def measured(self) -> list[dict[str, Any]]:
        """The measured processes, in the order of the results."""
        (process,) = manifest(self.out)["processes"]
        return list(process["measured"])

    def batches(self) -> dict[str, int | None]:
        """Of each process by its name, as its results have them; its ranges are those that its recorder counted.

        None: the tracer lost events of the process, which a finding reports.
        """
        lost = {finding["process"] for finding in self.findings() if finding["code"] in LOSSES}
        found: dict[str, int | None] = {}
        for process in open_run(self.out).processes:
            if (process.folder / "recorder.json").exists() and process.name not in lost:
                ranges = sum(one["ranges"] for one in read(self.out, f"{process.name}/recorder.json")["recorders"])
                assert process.table("ranges").num_rows == ranges
            meta = read(self.out, f"{process.name}/benchmark.json")["meta"]
            found[process.name] = None if process.name in lost else sum(meta["total_batches"].values())
        return found

    def findings(self) -> list[dict[str, Any]]:
        return list(read(self.out, "benchmark_mean.json")["meta"]["findings"])

    def codes(self) -> set[str]:
        return {finding["code"] for finding in self.findings()}


def launch(
    folder: Path, tracer: str, source: str, *arguments: str, by: Sequence[str] = (), sites: Sequence[str] = ()
) -> Tree:
    script, out = folder / "script.py", folder / "out"
    script.write_text(WORK + textwrap.dedent(source))
    options, own_sites = tracing(tracer)
    command = ("-w", "0", *options, "-o", out, *by, script, *arguments)
    done = run_to_the_end(command, environment(*own_sites, *sites))
    return Tree(out, done.returncode, done.stdout + done.stderr)


# ---- every way of starting a process ----

WAYS = """
import multiprocessing as mp, subprocess

NVTX = '''
import os, sys, nvtx
with nvtx.annotate("batch 0"): pass
assert os.environ["SEEN"] == sys.argv[1] + "x"
assert not [one for one in sys.path if one.endswith("/follow")]
'''
CLEARED = "import os; os.environ.clear(); import perfharness.recorder"


def become(program):
    work(2)
    os.environ["AGAIN"] = "1"
    os.execl(program[0], *program)


def fork(number):
    pid = os.fork()
    if not pid:
        time.sleep(0.05 * (4 - number))  # the first to be forked is the last to run
        work(1)
        os._exit(0)
    return pid


if __name__ == "__main__":
    python = [sys.executable, __file__]
    if sys.argv[1:] == ["work"]:
        work(1 if "AGAIN" in os.environ else 3)
    elif sys.argv[1:]:
        become(sys.argv[1:])
    else:
        work(1)
        for way in ("spawn", "forkserver", "fork"):
            worker = mp.get_context(way).Process(target=work, args=(3,))
            worker.start(), worker.join()
        for arguments in (["work"], [*python, "work"], ["/bin/true"]):
            subprocess.run([*python, *arguments], check=True)
        subprocess.run([sys.executable, "-c", NVTX, os.environ["SEEN"]], check=True)
        subprocess.run([sys.executable, "-c", CLEARED], check=True)
        forked = [fork(number) for number in range(4)]
        print(*forked)
        [os.waitpid(pid, 0) for pid in forked]
    perf.finalize()
"""


@pytest.fixture(
    scope="module", params=["embedded", "none", pytest.param("nsys", marks=[pytest.mark.slow, pytest.mark.nsys])]
)
def ways(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tree]:
    folder = tmp_path_factory.mktemp("ways")
    site = "import os\nos.environ['SEEN'] = os.environ.get('SEEN', '') + 'x'\n"
    (folder / "sitecustomize.py").write_text(site)  # the user's own, which is imported as ever
    return request.param, launch(folder, request.param, WAYS, sites=[str(folder)])


def test_each_process_has_its_own_ranges(ways: tuple[str, Tree]) -> None:
    """Also those that become another program, which counts what they recorded before."""
    tracer, tree = ways
    assert tree.code == (3 if LOSSES & tree.codes() else 0), tree.output
    folders = [one["folder"] for one in tree.measured()]
    assert folders == ["proc_0_gpu_0", *(f"proc_0_gpu_0/child_{number}" for number in range(len(folders) - 1))]
    kept = [read(tree.out, f"{one}/recorder.json") for one in folders if (tree.out / one / "recorder.json").exists()]
    assert [sum(one["batches"] for one in counts["recorders"]) for counts in kept] == [1, 3, 3, 3, 3, 3, 2, 1, 1, 1, 1]
    assert [counts["ended"] for counts in kept[4:7]] == ["finalized", "finalized", "exec"]
    if tracer == "none":
        assert tree.codes() == {"not-traced"}
        return
    expected = [1, 3, 3, 3, 3, 3, 2, 1, 1, 1, 1, 1]  # the eighth has ranges of plain NVTX
    for (process, found), batches in zip(tree.batches().items(), expected, strict=True):
        assert found == batches or (found is None and tracer == "nsys"), (
            process
        )  # which loses ends by os._exit and exec
    assert "child-killed" not in tree.codes()
    assert not list((tree.out / "proc_0_gpu_0").glob(".*"))


def test_children_are_in_the_order_in_which_they_began(ways: tuple[str, Tree]) -> None:
    """Those that are forked within milliseconds begin in any order, but after all others."""
    _, tree = ways
    forked = (tree.out / "proc_0_gpu_0/stdout.log").read_text().split()
    assert {one["pid"] for one in tree.measured()[-4:]} == {*map(int, forked)}


def test_a_python_that_empties_its_environment_is_named(ways: tuple[str, Tree]) -> None:
    tracer, tree = ways
    assert ("child-not-followed" in tree.codes()) == (tracer != "none")


# ---- ranks, workers of libraries ----


@pytest.mark.slow
def test_ranks(tmp_path: Path) -> None:
    """torchrun starts two; each starts a worker, which inherits its rank and is none."""
    pytest.importorskip("torch.distributed.run")
    source = """
        import subprocess
        if len(sys.argv) > 1:
            work(2)
        else:
            work(3 + int(os.environ["RANK"]))
            subprocess.run([sys.executable, __file__, "worker"], check=True)
        perf.finalize()
    """
    by = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2")
    tree = launch(tmp_path, "embedded", source, by=by)
    assert tree.code == 0, tree.output
    assert [*tree.batches().values()] == [3, 4, 2, 2]
    found = [(one["folder"].rpartition("/")[2], one["rank"], one["world_size"]) for one in tree.measured()]
    assert found == [("rank_0", 0, 2), ("rank_1", 1, 2), ("child_0", None, None), ("child_1", None, None)]


@pytest.mark.slow
def test_cpu_time_of_each_rank(tmp_path: Path) -> None:
    """One computes, the other sleeps."""
    source = """
        import subprocess
        if "RANK" not in os.environ:
            env = [{**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
            ranks = [subprocess.Popen([sys.executable, __file__], env=one) for one in env]
            sys.exit(max(rank.wait() for rank in ranks))
        time.sleep(1.3)
        for index in range(12):
            with perf.batch(index, total_items=1):
                end = time.monotonic() + 0.12
                while time.monotonic() < end:
                    time.sleep(0.12 if os.environ["RANK"] == "0" else 0)
        perf.finalize()
    """
    tree = launch(tmp_path, "embedded", source, by=("--telemetry",))
    assert tree.code == 0, tree.output
    found = read(tree.out, "benchmark_mean.json")["gpu_metrics"]["processes"]
    sleeps, computes = (found[f"proc_0_gpu_0/rank_{rank}"]["figures"]["cpu_percent"] for rank in range(2))
    assert computes["mean"] > 4 * sleeps["mean"]
    assert found["proc_0_gpu_0/rank_1"]["figures"]["threads"]["min"] == 1


# ---- names in forked processes ----

FORKED = """
def loop(names, batches):
    with perf.range("pipeline"):
        for index in range(batches):
            with perf.batch(index, total_items=1):
                for name in names:
                    with perf.range(name):
                        time.sleep(0.002)


def child(number):
    loop([f"new{number}", "two", "one"], 5)
    own = PerfRecorder(f"own{number}")  # a recorder that the parent does not know
    for index in range(3):
        with own.batch(index, total_items=2), own.range("mine"):
            time.sleep(0.002)
    own.finalize()
    grandchild = os.fork()
    if grandchild:
        os.waitpid(grandchild, 0)
    else:
        loop(["grand", f"new{number}"], 4)
    with perf.range("last"):  # nsys may lose what comes last in a process
        time.sleep(0.3)
    os._exit(0)


loop(["one", "two"], 3)  # names that the children inherit
with perf.range("open"):  # and a range that only the parent closes
    children = []
    for number in range(2):
        pid = os.fork()
        if not pid:
            child(number)
        children.append(pid)
    [os.waitpid(pid, 0) for pid in children]
loop(["late", "one"], 3)
perf.finalize()
"""


@TRACERS_SLOW_UNDER_NSYS
def test_names_from_before_and_after_a_fork(tmp_path: Path, tracer: str) -> None:
    tree = launch(tmp_path, tracer, FORKED)
    lost = {name for name, batches in tree.batches().items() if batches is None}
    assert not lost or tracer == "nsys"
    assert tree.code == (3 if lost else 0), tree.output
    assert sorted({*open_run(tree.out).ranges()["domain"].to_pylist()}) == [
        "perfharness", "perfharness:own0", "perfharness:own1",
    ]  # fmt: skip
    parent = {"pipeline": 2, "batch": 6, "one": 6, "two": 3, "late": 3, "open": 1}
    child = {"pipeline": 1, "batch": 5 + 3, "one": 5, "two": 5, "mine": 3}
    grandchild = {"pipeline": 1, "batch": 4, "grand": 4}
    made = ((child, 5), (grandchild, 4))
    expected = [parent, *({**names, f"new{number}": new} for names, new in made for number in range(2))]
    for process in open_run(tree.out).processes:
        names = Counter(process.table("ranges")["name"].to_pylist())
        del names["last"]
        assert process.name in lost or names in expected
        if names in expected:
            expected.remove(dict(names))
        assert (process.folder / "trace.sqlite").exists() == (tracer == "embedded" or process.name == "proc_0_gpu_0")
    assert len(expected) <= len(lost)
    if not lost:
        data = [read(tree.out, f"{name}/benchmark.json")["data"] for name in tree.batches()]
        assert [one["app"]["pipeline"]["batch_0"]["count"] for one in data] == [2, 1, 1, 1, 1]
        assert read(tree.out, "benchmark_mean.json")["mean_all_batches"]["own0"]["batch_2"]["total_items"] == 2


# ---- what goes wrong ----


@TRACERS_SLOW_UNDER_NSYS
def test_a_worker_that_is_killed(tmp_path: Path, tracer: str) -> None:
    """In its second batch: what it did before is kept (embedded); both tracers report that it was killed, with 3."""
    source = """
        import multiprocessing as mp, signal
        def die():
            with perf.range("loop"):
                with perf.batch(0, total_items=2): time.sleep(0.002)
                with perf.batch(1, total_items=2):
                    os.kill(os.getpid(), signal.SIGKILL)
        if __name__ == "__main__":
            worker = mp.get_context("spawn").Process(target=die)
            worker.start(), worker.join()
            work(3)
            perf.finalize()
    """
    tree = launch(tmp_path, tracer, source)
    assert [one["folder"] for one in tree.measured()] == ["proc_0_gpu_0", "proc_0_gpu_0/child_0"]
    assert tree.code == 3, tree.output
    assert read(tree.out, "proc_0_gpu_0/benchmark.json")["meta"]["total_batches"] == {"app/loop/batch": 3}
    assert "child-killed" in tree.codes()
    if tracer == "embedded":
        assert "range-never-closed" in tree.codes()
        child = read(tree.out, "proc_0_gpu_0/child_0/benchmark.json")
        assert child["data"]["app"]["loop"]["batch_0"]["total_items"] == 2


def test_a_rank_that_exits(tmp_path: Path) -> None:
    """The launch fails as the program does, and both ranks' batches are kept; their parent has no numbers."""
    source = """
        import subprocess
        if "RANK" in os.environ:
            work(2 + int(os.environ["RANK"]))
            sys.exit(int(os.environ["RANK"]))
        ranks = [
            subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"})
            for rank in range(2)  # the third never starts
        ]
        sys.exit(max(rank.wait() for rank in ranks))
    """
    tree = launch(tmp_path, "embedded", source)
    assert tree.code == 1
    assert [one["folder"] for one in tree.measured()] == [f"proc_0_gpu_0/rank_{rank}" for rank in range(2)]
    assert [*tree.batches().values()] == [2, 3]
    assert {"process-failed", "ranks-missing"} <= tree.codes()
    assert not (tree.out / "proc_0_gpu_0" / "benchmark.json").exists()


# ---- the start-up hook ----


def run_with_hook(code: str, *sites: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(part for part in (*sites, os.environ.get("PYTHONPATH")) if part)
    given = {name: value for name, value in os.environ.items() if not name.startswith("PERFHARNESS_")}
    environ = {**given, "PYTHONPATH": path, **variables}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)


def test_a_python_that_makes_no_ranges_imports_nothing_of_ours(tmp_path: Path) -> None:
    code = "import sys, json, multiprocessing; print([one for one in sys.modules if one.startswith('perfharness')])"
    variables = {"PERFHARNESS_OUTPUT_DIR": str(tmp_path), "PERFHARNESS_TRACER": "embedded"}
    assert run_with_hook(code, str(FOLLOW), **variables).stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []


def test_the_users_own_hook_fails_as_it_does_without_ours(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import not_there_at_all\n")
    code = "import sys; print(sys.path.count(''), 'sitecustomize' in sys.modules)"
    for first in (str(FOLLOW), ""):
        done = run_with_hook(code, first, str(tmp_path))
        assert "not_there_at_all" in done.stderr
        assert done.stdout == "1 False\n"
