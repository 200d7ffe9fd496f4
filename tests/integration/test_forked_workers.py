"""Recorders in forked workers: every range under its own name, and none that is lost unseen."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest

from perfharness import open_run
from tests.integration.launches import TRACERS_SLOW_UNDER_NSYS, environment, run_to_the_end, tracing

SCRIPT = textwrap.dedent("""
    import os, time
    from perfharness import PerfRecorder

    perf = PerfRecorder("app")


    def loop(names, batches):
        with perf.range("pipeline"):
            for index in range(batches):
                with perf.batch(index, total_items=1):
                    for name in names:
                        with perf.range(name):
                            time.sleep(0.002)


    loop(["one", "two"], 3)  # names that the children inherit
    with perf.range("open"):  # and a range that only the parent closes
        children = []
        for number in range(2):
            pid = os.fork()
            if pid == 0:
                loop([f"new{number}", "two", "one"], 5)
                own = PerfRecorder(f"own{number}")  # and a recorder that the parent does not know
                for index in range(3):
                    with own.batch(index, total_items=2), own.range("mine"):
                        time.sleep(0.002)
                own.finalize()
                grandchild = os.fork()
                if grandchild == 0:
                    loop(["grand", f"new{number}"], 4)
                else:
                    os.waitpid(grandchild, 0)
                with perf.range("last"):  # nsys may lose what comes last in a process
                    time.sleep(0.3)
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
    loop(["late", "one"], 3)
    perf.finalize()
""")


@TRACERS_SLOW_UNDER_NSYS
def test_names_from_before_and_after_the_fork(tmp_path: Path, tracer: str) -> None:
    script = tmp_path / "forked.py"
    script.write_text(SCRIPT)
    options, sites = tracing(tracer)
    with_nsys = tracer == "nsys"
    attempts = 5 if with_nsys else 1  # nsys loses last events of a child that ends by os._exit now and then
    for attempt in range(attempts):
        out = tmp_path / f"out{attempt}"
        done = run_to_the_end((*options, "-o", out, script), environment(*sites))
        if done.returncode != 3:
            break
        findings = open_run(out).findings
        assert {"trace-missing-ranges", "trace-missing-items"} & {finding.code for finding in findings}
    if with_nsys and done.returncode == 3:
        pytest.skip("this nsys lost events of the forked children in each of five runs, and each said so")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = open_run(out).ranges()
    assert sorted(pc.unique(rows["domain"]).to_pylist()) == ["perfharness", "perfharness:own0", "perfharness:own1"]
    counts: dict[int, Counter[str]] = {}
    for pid, name in zip(rows["pid"].to_pylist(), rows["name"].to_pylist(), strict=True):
        counts.setdefault(pid, Counter())[name] += 1
    for names in counts.values():
        names.pop("last", None)
    process = out / "proc_0_gpu_0"
    parent = json.loads((process / "recorder.json").read_text())["pid"]
    assert counts.pop(parent) == {"pipeline": 2, "batch": 6, "one": 6, "two": 3, "late": 3, "open": 1}
    child = {"pipeline": 1, "batch": 5 + 3, "one": 5, "two": 5, "mine": 3}
    grandchild = {"pipeline": 1, "batch": 4, "grand": 4}
    expected = [{**names, f"new{number}": new} for names, new in ((child, 5), (grandchild, 4)) for number in range(2)]
    assert sorted(map(sorted, (names.items() for names in counts.values()))) == sorted(
        map(sorted, (names.items() for names in expected))
    )
    measured = {one.name: one.measured.pid for one in open_run(out).processes if one.measured is not None}
    assert list(measured) == ["proc_0_gpu_0", *(f"proc_0_gpu_0/child_{number}" for number in range(4))]
    assert measured["proc_0_gpu_0"] == parent
    data = {name: json.loads((out / name / "benchmark.json").read_text())["data"] for name in measured}
    assert [one["app"]["pipeline"]["batch_0"]["count"] for one in data.values()] == [2, 1, 1, 1, 1]
    own = [key for one in data.values() for key in one if key.startswith("own")]
    assert sorted(own) == ["own0", "own1"]
    for name, pid in measured.items():
        assert json.loads((out / name / "recorder.json").read_text())["pid"] == pid
        assert (out / name / "trace.sqlite").exists() == (not with_nsys or name == "proc_0_gpu_0")
    mean = json.loads((out / "benchmark_mean.json").read_text())["mean_all_batches"]
    assert mean["own0"]["batch_2"]["total_items"] == 2
