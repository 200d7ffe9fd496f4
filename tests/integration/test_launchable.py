"""What `perfharness launch` takes besides a `.py` file, measured under both tracers as it runs without us."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfharness.model.manifest import RunManifest
from perfharness.runs.run import open_run
from perfharness.telemetry.store import read_sample_log
from tests.integration.launches import NSYS, NVTX_SITE, codes, environment, manifest, read, run_to_the_end
from tests.support.nvml_cards import gpu_uuid, h100_machine, mig_uuid
from tests.support.replayed_nvml import replay_environment

PIPELINE = """
import os, sys
from perfharness import PerfRecorder
import beside
print(sys.argv, sys.path[0], __name__, __file__, __spec__ and __spec__.name, sys.flags.optimize, beside.__file__)
perf = PerfRecorder("pipe")
def main():
    for index in range(5):
        with perf.batch(index, total_items=4), perf.range("part"):
            work()
def work():
    return beside.part()
with perf.range("pipeline"):
    main()
perf.finalize()
sys.exit(3 if "fail" in sys.argv else 0)
"""


@dataclass(frozen=True)
class Shop:
    """A folder with a module, a script without an ending, and a console script on PATH."""

    folder: Path

    def environment(self, site: str | None) -> dict[str, str]:
        found = environment(*([site] if site else []))
        return {**found, "PATH": f"{self.folder / 'bin'}{os.pathsep}{found['PATH']}", "PERFHARNESS_HISTORY": "off"}

    def plainly(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command], cwd=self.folder, env=self.environment(None), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def launch(self, *arguments: str, site: str | None = None) -> subprocess.CompletedProcess[str]:
        return run_to_the_end(("-w", "0", "-o", "out", *arguments), self.environment(site), self.folder)

    def output(self) -> str:
        return (self.folder / "out" / "proc_0_gpu_0" / "stdout.log").read_text()

    def counts(self) -> dict[str, int]:
        """How often each range is in the results."""
        return Counter(open_run(self.folder / "out").ranges()["name"].to_pylist())


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    for folder in ("package", "bin"):
        (tmp_path / folder).mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    for folder in (".", "bin", "package"):
        (tmp_path / folder / "beside.py").write_text("def part(): return [1, 2]\n")
    for name in ("package/__main__.py", "package/part.py", "plain"):
        (tmp_path / name).write_text(PIPELINE)
    console = tmp_path / "bin" / "console"
    console.write_text(f"#!{sys.executable} -O\n{PIPELINE}")
    console.chmod(0o755)
    return Shop(tmp_path)


EMBEDDED = ("--tracer", "embedded")
CASES = {
    "console": (("console", "a"), ("console", "a")),
    "module": (("--module", "package", "-m", "b"), (sys.executable, "-m", "package", "-m", "b")),
    "python -m": ((sys.executable, "-Om", "package.part"), (sys.executable, "-O", "-m", "package.part")),
    "python FILE": ((sys.executable, "-O", "plain", "fail"), (sys.executable, "-O", "plain", "fail")),
}  # fmt: skip


RANGES = {"pipeline": 1, "batch": 5, "part": 5}
ANNOTATED = {**RANGES, "work": 5, "part": 10}
ANNOTATIONS = """
[recorder]
name = "outside"
[[batch]]
function = "__main__:work"
items = "len(result)"
[[range]]
function = "beside:part"
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["python -m", "python FILE"])
def test_it_runs_as_without_us_and_every_range_is_measured(shop: Shop, case: str) -> None:
    own, plain = CASES[case]
    done, expected = shop.launch(*EMBEDDED, *own), shop.plainly(*plain)
    (record,) = manifest(shop.folder / "out")["processes"]
    assert (shop.output(), record["exit_code"]) == (expected.stdout, expected.returncode), done.stderr
    assert done.returncode == (1 if "fail" in own else 0)
    assert shop.counts() == RANGES


@pytest.mark.parametrize("case", ["console", pytest.param("module", marks=pytest.mark.slow)])
def test_it_runs_as_without_us_and_functions_of_its_main_module_are_annotated(shop: Shop, case: str) -> None:
    own, plain = CASES[case]
    (shop.folder / "file.toml").write_text(ANNOTATIONS)
    done, expected = shop.launch(*EMBEDDED, "--annotate", "file.toml", *own), shop.plainly(*plain)
    assert done.returncode == 0, done.stderr
    assert shop.output() == expected.stdout
    assert shop.counts() == ANNOTATED


def test_python_that_another_program_becomes_is_followed_and_annotated(shop: Shop) -> None:
    words = ("env", "OF=us", sys.executable, "-O", "plain")
    (shop.folder / "file.toml").write_text(ANNOTATIONS)
    done, expected = shop.launch(*EMBEDDED, "--annotate", "file.toml", *words), shop.plainly(*words)
    assert done.returncode == 0, done.stderr
    assert shop.output() == expected.stdout
    assert shop.counts() == ANNOTATED
    assert not {"annotations-not-reported", "annotation-not-found"} & set(codes(shop.folder / "out"))
    (record,) = manifest(shop.folder / "out")["processes"]
    assert [one["folder"] for one in record["measured"]] == [record["folder"]]


def test_a_program_in_which_nothing_can_be_measured_is_an_error(shop: Shop) -> None:
    assert shop.launch(*EMBEDDED, "ls").returncode == 1
    assert "trace-missing" in codes(shop.folder / "out")


@pytest.mark.slow
@pytest.mark.nsys
def test_the_same_under_nsys(shop: Shop) -> None:
    own, plain = CASES["console"]
    done, expected = shop.launch("--nsys", NSYS, *own, site=NVTX_SITE), shop.plainly(*plain)
    assert done.returncode == 0, done.stderr
    assert shop.output() == expected.stdout
    assert shop.counts() == RANGES


@pytest.mark.parametrize(
    ("mig", "arguments", "folders"),
    [
        (
            {},
            ["-ng", "4"],
            {"proc_0_gpu_0-1": [gpu_uuid(0), gpu_uuid(1)], "proc_0_gpu_2-3": [gpu_uuid(2), gpu_uuid(3)]},
        ),
        pytest.param(
            {0: 2},
            ["--gpus", "0:1,0:0"],
            {"proc_0_gpu_0-0": [mig_uuid(0, 1), mig_uuid(0, 0)]},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["whole GPUs", "MIG"],
)
def test_processes_of_two_gpus_each(
    shop: Shop, mig: dict[int, int], arguments: list[str], folders: dict[str, list[str]]
) -> None:
    """On a machine of which NVML tells; what runs is on the CPU."""
    (shop.folder / "nvml.json").write_text(h100_machine(4, mig_instances=mig).model_dump_json())
    (shop.folder / "perfharness.toml").write_text("[launch]\nmeasure-idle = 0\ngpus-per-process = 2\n")
    (shop.folder / "show.py").write_text("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])\n" + PIPELINE)
    out = shop.folder / "out"
    options = ("--telemetry", "-w", 0, "-o", "out")
    done = run_to_the_end(
        (*EMBEDDED, *options, *arguments, "show.py"),
        {**shop.environment(None), **replay_environment(shop.folder / "nvml.json")},
        shop.folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    given = {folder: (out / folder / "stdout.log").read_text().splitlines()[0] for folder in folders}
    assert given == {folder: ",".join(uuids) for folder, uuids in folders.items()}
    launched = RunManifest.model_validate_json((out / "manifest.json").read_text())
    assert {record.folder: record.given_gpus for record in launched.processes} == folders
    log, mean = read_sample_log(out / "telemetry.parquet"), read(out, "benchmark_mean.json")
    assert {one.name: one.given_gpus for one in log.subjects("process")} == folders
    for uuid in (uuid for uuids in folders.values() for uuid in uuids):
        assert log.get(uuid, "memory_used_bytes") is not None
    for folder, uuids in folders.items():
        assert mean["gpu_metrics"]["processes"][folder]["gpu_uuids"] == uuids
        own = read(out / folder, "benchmark.json")
        assert [device["uuid"] for device in own["meta"]["device"]] == uuids
    sensors = {
        gpu["uuid"]: gpu["processes"] for gpu in mean["gpu_metrics"]["gpus"] if not gpu["uuid"].startswith("MIG")
    }
    if mig:
        assert sensors == {gpu_uuid(0): list(folders)}
    else:
        assert sensors == {uuid: [folder] for folder, uuids in folders.items() for uuid in uuids}
