"""Programs of several processes under both tracers: every range that a recorder counted is in its own results."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfharness import open_run
from tests.integration.launches import TRACERS_SLOW_UNDER_NSYS, environment, manifest, run_to_the_end, tracing

WORK = """
import os, sys, time
from perfharness import PerfRecorder

perf = PerfRecorder("app")


def work(batches):
    with perf.range("loop"):
        for index in range(batches):
            with perf.batch(index, total_items=2), perf.range("stage"):
                time.sleep(0.002)
    return os.getpid()
"""
"""A call makes `1 + 2 * batches` ranges."""


@dataclass(frozen=True)
class Tree:
    """A launch that has ended, and its output."""

    out: Path
    code: int
    output: str

    @property
    def folders(self) -> list[str]:
        """Of the measured processes, in the order of the results, below that of the launched one."""
        (process,) = manifest(self.out)["processes"]
        return [one["folder"].removeprefix("proc_0_gpu_0").removeprefix("/") for one in process["measured"]]

    def batches(self) -> dict[str, int]:
        """Of each process, as its results have them; its ranges are those that its recorder counted."""
        found = {}
        for process in open_run(self.out).processes:
            counted = json.loads((process.folder / "recorder.json").read_text())
            assert process.measured is not None
            assert counted["pid"] == process.measured.pid
            assert process.table("ranges").num_rows == sum(one["ranges"] for one in counted["recorders"])
            meta = json.loads((process.folder / "benchmark.json").read_text())["meta"]
            found[process.name.removeprefix("proc_0_gpu_0").removeprefix("/")] = sum(meta["total_batches"].values())
        return found

    @property
    def codes(self) -> set[str]:
        """Of all findings."""
        mean = json.loads((self.out / "benchmark_mean.json").read_text())
        return {finding["code"] for finding in mean["meta"]["findings"]}

    @property
    def mean(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "benchmark_mean.json").read_text())
        return found


def launch(
    folder: Path, tracer: str, source: str, *arguments: str, by: Sequence[str] = (), first: str = "", **environ: str
) -> Tree:
    """`first`: what the script does before it makes its recorder."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(first) + WORK + textwrap.dedent(source))
    out = folder / "out"
    options, sites = tracing(tracer)
    command = ("-w", "0", *options, "-o", out, *by, script, *arguments)
    done = run_to_the_end(command, environment(*sites, **environ))
    return Tree(out, done.returncode, done.stdout + done.stderr)


# ---- every way of starting a process ----

POOLS = {
    "spawn": """
        import multiprocessing as mp
        if __name__ == "__main__":
            context = mp.get_context("spawn")
            workers = [context.Process(target=work, args=(3,)) for _ in range(2)]
            [one.start() for one in workers], [one.join() for one in workers]
            work(1)
            perf.finalize()
    """,
    "fork": """
        import multiprocessing as mp
        if __name__ == "__main__":
            work(1)
            pool = mp.get_context("fork").Pool(2)
            pool.map(work, [3] * 2, chunksize=1)
            pool.close(), pool.join()
            perf.finalize()
    """,
    "forkserver": """
        import multiprocessing as mp
        if __name__ == "__main__":
            context = mp.get_context("forkserver")
            workers = [context.Process(target=work, args=(3,)) for _ in range(2)]
            [one.start() for one in workers], [one.join() for one in workers]
            work(1)
            perf.finalize()
    """,
    "futures": """
        import multiprocessing as mp
        from concurrent.futures import ProcessPoolExecutor
        if __name__ == "__main__":
            with ProcessPoolExecutor(2, mp_context=mp.get_context("spawn")) as pool:
                [one.result() for one in [pool.submit(work, 3) for _ in range(2)]]
            work(1)
            perf.finalize()
    """,
    "subprocess": """
        import subprocess
        if len(sys.argv) > 1:
            work(3)
        else:
            [subprocess.run([sys.executable, __file__, "child"], check=True) for _ in range(2)]
            work(1)
        perf.finalize()
    """,
}


@pytest.mark.parametrize(
    ("tracer", "way"),
    [
        ("embedded", "spawn"),
        ("embedded", "fork"),
        ("embedded", "subprocess"),
        pytest.param("embedded", "forkserver", marks=pytest.mark.slow),
        pytest.param("embedded", "futures", marks=pytest.mark.slow),
        pytest.param("nsys", "spawn", marks=[pytest.mark.slow, pytest.mark.nsys]),
        pytest.param("nsys", "fork", marks=[pytest.mark.slow, pytest.mark.nsys]),
    ],
)
def test_workers(tmp_path: Path, tracer: str, way: str) -> None:
    """Two loops of 3 batches in the workers, which may be one's work where it takes both, and one batch of our own."""
    tree = launch(tmp_path, tracer, POOLS[way])
    if tree.code == 3 and tracer == "nsys":
        assert {"trace-missing-ranges", "trace-missing-items"} & tree.codes
        pytest.skip("this nsys lost events of a worker that ended by os._exit, and the run said so")
    assert tree.code == 0, tree.output
    batches = tree.batches()
    assert next(iter(batches)) == ""
    assert batches.pop("") == 1
    assert list(batches) == [f"child_{number}" for number in range(len(batches))]
    assert sum(batches.values()) == 6
    assert set(batches.values()) <= {3, 6}
    assert tree.mean["stats_minus_warmup"]["app"]["loop"]["batch"]["cpu_time"]["count"] == 7
    assert not {path.name for path in (tree.out / "proc_0_gpu_0").iterdir() if path.name.startswith(".")}


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
    assert tree.batches() == {"rank_0": 3, "rank_1": 4, "child_0": 2, "child_1": 2}
    ranks = [(one.measured.rank, one.measured.world_size) for one in open_run(tree.out).processes if one.measured]
    assert ranks == [(0, 2), (1, 2), (None, None), (None, None)]


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
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(WORK + textwrap.dedent(source))
    done = run_to_the_end(("-w", "1", "--tracer", "embedded", "--telemetry", "-o", out, script), environment())
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "benchmark_mean.json").read_text())["gpu_metrics"]["processes"]
    sleeps, computes = (found[f"proc_0_gpu_0/rank_{rank}"]["figures"]["cpu_percent"] for rank in range(2))
    assert computes["mean"] > 4 * sleeps["mean"]
    assert found["proc_0_gpu_0/rank_1"]["figures"]["threads"]["min"] == 1


@pytest.mark.slow
def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = """
        import torch
        class Files(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                with perf.range("decode"):
                    time.sleep(0.002)
                return index
        if __name__ == "__main__":
            loader = torch.utils.data.DataLoader(Files(), batch_size=2, num_workers=2)
            for index, batch in perf.batches(loader, items=len):
                pass
            perf.finalize()
    """
    tree = launch(tmp_path, "embedded", source)
    assert tree.code == 0, tree.output
    assert tree.batches() == {"": 4, "child_0": 0, "child_1": 0}
    assert open_run(tree.out).ranges()["name"].to_pylist().count("decode") == 8


# ---- plain NVTX, annotations, no tracer ----


def test_ranges_of_nvtx_in_a_child_without_a_recorder(tmp_path: Path) -> None:
    """And a `sitecustomize` of the user, which is imported as ever."""
    own = tmp_path / "site"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['SEEN'] = os.environ.get('SEEN', '') + 'x'\n")
    script = tmp_path / "plain.py"
    script.write_text(
        "import subprocess, sys, os, nvtx\n"
        "if len(sys.argv) > 1:\n"
        "    with nvtx.annotate('batch 0'): pass\n"
        "    assert os.environ['SEEN'] == sys.argv[1] + 'x', os.environ['SEEN']\n"
        "    assert not [one for one in sys.path if one.endswith('/follow')]\n"
        "else:\n"
        "    subprocess.run([sys.executable, __file__, os.environ['SEEN']], check=True)\n"
        "    with nvtx.annotate('batch 0'): pass\n"
    )
    out = tmp_path / "out"
    environ = environment(str(own), SEEN="")
    done = run_to_the_end(("-w", "0", "--tracer", "embedded", "-o", out, script), environ)
    assert done.returncode == 0, done.stdout + done.stderr
    run = open_run(out)
    assert [one.table("ranges")["name"].to_pylist() for one in run.processes] == [["batch 0"], ["batch 0"]]


def test_without_a_tracer_the_counts_of_all_are_kept(tmp_path: Path) -> None:
    tree = launch(tmp_path, "none", POOLS["subprocess"])
    assert tree.folders == ["", "child_0", "child_1"]
    counts = [json.loads((tree.out / "proc_0_gpu_0" / name / "recorder.json").read_text()) for name in tree.folders]
    assert [one["recorders"][0]["ranges"] for one in counts] == [3, 7, 7]


# ---- what goes wrong ----


@TRACERS_SLOW_UNDER_NSYS
def test_a_worker_that_is_killed(tmp_path: Path, tracer: str) -> None:
    """In its second batch: what it did before is kept (embedded); in both it is said that it was killed, with 3."""
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
    assert tree.folders == ["", "child_0"]
    assert tree.code == 3, tree.output
    mean = json.loads((tree.out / "proc_0_gpu_0" / "benchmark.json").read_text())
    assert mean["meta"]["total_batches"] == {"app/loop/batch": 3}
    assert "child-killed" in tree.codes
    if tracer == "embedded":
        assert "range-never-closed" in tree.codes
        child = json.loads((tree.out / "proc_0_gpu_0" / "child_0" / "benchmark.json").read_text())
        assert child["data"]["app"]["loop"]["batch_0"]["total_items"] == 2


@pytest.mark.slow
def test_what_conda_run_starts_is_measured(tmp_path: Path) -> None:
    """`conda` is written in Python: its own interpreter has no perfharness, and need not have."""
    empty = tmp_path / "base" / "bin" / "python"
    empty.parent.mkdir(parents=True)
    empty.symlink_to(Path(sys.executable).resolve())
    conda = tmp_path / "conda"
    conda.write_text(f"#!{empty} -S\nimport subprocess, sys\nsys.exit(subprocess.call(sys.argv[4:]))\n")
    conda.chmod(0o755)
    tree = launch(
        tmp_path, "embedded", "work(3)\nperf.finalize()\n", by=(str(conda), "run", "-n", "two", sys.executable)
    )
    assert tree.code == 0, tree.output
    assert tree.batches() == {"child_0": 3}


def test_children_are_in_the_order_in_which_they_were_started(tmp_path: Path) -> None:
    """Of eight that are forked one after another the first are the last to run."""
    first = """
        import os, time
        number = 0
        os.register_at_fork(after_in_child=lambda: time.sleep(0.05 * (8 - number)))
    """
    source = """
        children = []
        for number in range(8):
            child = os.fork()
            if not child:
                work(1)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        open(sys.argv[1], "w").write(" ".join(map(str, children)))
    """
    tree = launch(tmp_path, "embedded", source, str(tmp_path / "order"), first=first)
    (process,) = manifest(tree.out)["processes"]
    assert tree.folders == [f"child_{number}" for number in range(8)]
    assert [one["pid"] for one in process["measured"]] == [*map(int, (tmp_path / "order").read_text().split())]


def test_processes_that_become_another_program(tmp_path: Path) -> None:
    """What they recorded before is counted too: one becomes a program that records more, one becomes another.

    Their parent measures nothing, and has no numbers.
    """
    source = """
        import subprocess
        if len(sys.argv) < 2:
            for program in (f"{sys.executable} {__file__}", "/bin/true"):
                subprocess.run([sys.executable, __file__, program], check=True)
            sys.exit()
        work(2)
        if "AGAIN" not in os.environ:
            os.environ["AGAIN"] = "1"
            command = sys.argv[1].split()
            os.execl(command[0], *command, "child")
        work(1)
    """
    tree = launch(tmp_path, "embedded", source)
    assert tree.code == 0, tree.output
    assert tree.batches() == {"child_0": 5, "child_1": 2}
    for number, ended in enumerate(("exit", "exec")):
        assert json.loads((tree.out / f"proc_0_gpu_0/child_{number}/recorder.json").read_text())["ended"] == ended
    assert not (tree.out / "proc_0_gpu_0" / "benchmark.json").exists()
    assert "child-killed" not in tree.codes


def test_a_rank_that_exits(tmp_path: Path) -> None:
    """The launch fails as the program does, and both ranks' batches are kept."""
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
    assert tree.batches() == {"rank_0": 2, "rank_1": 3}
    assert {"process-failed", "ranks-missing"} <= tree.codes
