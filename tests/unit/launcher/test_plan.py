"""Options and machine -> plan: what is started, where, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfharness.errors import UsageError
from perfharness.model.environment import EXPLAIN
from perfharness.model.manifest import GpuRecord, ProcessRecord
from perfharness_launcher.nsys import NsysInstall, NsysTracing, profile_command
from perfharness_launcher.plan.launch_plan import LaunchPlan, explaining_pass, make_plan
from perfharness_launcher.plan.machine import InterpreterFacts, MachineFacts
from perfharness_launcher.plan.options import LaunchOptions
from perfharness_launcher.plan.program import Program, find_program
from perfharness_launcher.process import planned_command
from perfharness_launcher.processes.outcome import planned_record

PYTHON = InterpreterFacts("/usr/bin/python3", "3.11.7", "0.2.11", has_perfharness=True)
NSYS = NsysInstall(
    Path("/opt/nsys"),
    version=(2025, 3, 1),
    version_text="2025.3.1",
    profile_options=frozenset({"trace", "sample", "cpuctxsw", "wait", "force-overwrite"}),
    source="PATH",
)
NO_SCRIPT = Program("pipeline.py", "python3", path="pipeline.py", problem="there is no script pipeline.py")
TWO_GPUS = (GpuRecord(index=0, uuid="GPU-aaaa", name="H200"), GpuRecord(index=1, uuid="GPU-bbbb", name="H200"))
MIG = (
    GpuRecord(index=0, uuid="MIG-1111", mig=True),
    GpuRecord(index=0, uuid="MIG-2222", mig=True),
    GpuRecord(index=1, uuid="GPU-bbbb"),
)


def plan(facts: dict[str, Any] | None = None, **options: Any) -> LaunchPlan:
    asked = LaunchOptions(**{"script": "pipeline.py", **options})
    program = replace(find_program(asked), problem=None)
    machine = MachineFacts(**{"program": program, "interpreter": PYTHON, "gpu_problem": "no driver", **(facts or {})})
    return make_plan(asked, machine)


def refusal(facts: dict[str, Any] | None = None, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        plan(facts, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        ((), {"num_processes": 2}, [("proc_0_gpu_0", None), ("proc_1_gpu_0", None)]),
        (
            TWO_GPUS,
            {"num_processes": 2, "num_gpus": 2},
            [
                *(("proc_0_gpu_0", "GPU-aaaa"), ("proc_1_gpu_0", "GPU-aaaa")),
                *(("proc_0_gpu_1", "GPU-bbbb"), ("proc_1_gpu_1", "GPU-bbbb")),
            ],
        ),
        (  # two MIG instances of one GPU
            MIG,
            {"num_gpus": 3},
            [("proc_0_gpu_0", "MIG-1111"), ("proc_1_gpu_0", "MIG-2222"), ("proc_0_gpu_1", "GPU-bbbb")],
        ),
    ],
)
def test_each_gpu_gets_a_group_of_processes_by_uuid(
    gpus: tuple[GpuRecord, ...], options: dict[str, Any], expected: list[tuple[str, str | None]]
) -> None:
    made = plan({"gpus": gpus}, **options)
    assert [(spec.folder, spec.environment.get("CUDA_VISIBLE_DEVICES")) for spec in made.processes] == expected
    assert [spec.index for spec in made.processes] == list(range(len(expected)))


FOUR = tuple(GpuRecord(index=number, uuid=f"GPU-{number}", name="H200") for number in range(4))


@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        (FOUR, {}, [("proc_0_gpu_0-1", "GPU-0,GPU-1")]),
        (FOUR, {"num_gpus": 4}, [("proc_0_gpu_0-1", "GPU-0,GPU-1"), ("proc_0_gpu_2-3", "GPU-2,GPU-3")]),
        (
            FOUR,
            {"gpus": ("3", "1"), "num_processes": 2},
            [("proc_0_gpu_3-1", "GPU-3,GPU-1"), ("proc_1_gpu_3-1", "GPU-3,GPU-1")],
        ),
        (FOUR, {"gpu_offset": 2}, [("proc_0_gpu_2-3", "GPU-2,GPU-3")]),
        (MIG, {"gpus": ("0:0", "0:1")}, [("proc_0_gpu_0-0", "MIG-1111,MIG-2222")]),
    ],
)
def test_each_process_of_a_group_sees_all_of_its_gpus(
    gpus: tuple[GpuRecord, ...], options: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    made = plan({"gpus": gpus}, gpus_per_process=2, **options)
    assert [(spec.folder, spec.environment["CUDA_VISIBLE_DEVICES"]) for spec in made.processes] == expected
    records = [planned_record(spec, ["python"]) for spec in made.processes]
    assert [",".join(record.given_gpus) for record in records] == [uuids for _, uuids in expected]
    assert [ProcessRecord.model_validate_json(record.model_dump_json()) for record in records] == records
    assert made.processes[0].environment["PERFHARNESS_GPU_INDEX"] == expected[0][0].rpartition("_")[2].replace("-", ",")
    assert [finding.code for finding in made.findings] == ["several-mig-instances"] * (gpus is MIG)


@pytest.mark.parametrize(
    ("facts", "options", "words"),
    [
        ({"gpus": FOUR}, {"num_gpus": 3, "gpus_per_process": 2}, "3 GPUs"),
        ({"gpus": FOUR}, {"gpus_per_process": 8}, "8 GPUs"),
        ({"gpus": FOUR}, {"gpus_per_process": 0}, "gpus-per-process 0"),
        ({}, {"gpus_per_process": 2}, "no GPU"),
    ],
)
def test_groups_that_cannot_be_made(facts: dict[str, Any], options: dict[str, Any], words: str) -> None:
    assert words in refusal(facts, **options)


def test_the_environment_says_who_and_where_the_process_is() -> None:
    spec = plan({"gpus": TWO_GPUS}, num_gpus=2, warmup_batches=3, log_level="debug", tracer="embedded").processes[1]
    assert spec.environment_in(Path("/run")) == {
        "PERFHARNESS_OUTPUT_DIR": "/run/proc_0_gpu_1",
        "PERFHARNESS_PROCESS_INDEX": "1",
        "PERFHARNESS_NUM_PROCESSES": "2",
        "PERFHARNESS_GPU_INDEX": "1",
        "PERFHARNESS_TRACER": "embedded",
        "PERFHARNESS_WARMUP_BATCHES": "3",
        "PERFHARNESS_LOG_LEVEL": "debug",
        "CUDA_VISIBLE_DEVICES": "GPU-bbbb",
    }


def test_the_explaining_pass_is_the_same_plan_in_a_folder_inside() -> None:
    asked = {
        "explain": True,
        "output_dir": Path("/o"),
        "cool_down_c": 40.0,
        "require_exclusive": True,
        "trace_os": True,
    }
    first = plan({"gpus": TWO_GPUS, "nsys": (NSYS,)}, num_gpus=2, maximize_clocks=True, **asked)
    second = explaining_pass(first)
    assert (first.explaining, second.explaining) == (False, True)
    changed = {"explain", "output_dir", "cool_down_c", "require_exclusive", "measure_idle_s"}
    assert first.options.model_dump(exclude=changed) == second.options.model_dump(exclude=changed)
    assert (second.options.output_dir, second.options.measure_idle_s) == (Path("/o/explain"), 0.0)
    assert not second.options.explain
    assert [spec.environment.get(EXPLAIN) for spec in (*first.processes, *second.processes)] == [None, None, "1", "1"]
    for before, after in zip(first.processes, second.processes, strict=True):
        assert {**after.environment, EXPLAIN: None} == {**before.environment, EXPLAIN: None}
        assert (after.folder, after.placement) == (before.folder, before.placement)
        assert after.command == before.command
    assert second.nsys is not None
    assert (first.nsys, second.nsys.explain) == (replace(second.nsys, explain=False), True)


def test_python_runs_the_script_itself() -> None:
    spec = plan(tracer="embedded", script_arguments=("-b", "4")).processes[0]
    assert spec.command == ("/usr/bin/python3", "pipeline.py", "-b", "4")


def test_a_script_that_is_no_python_runs_as_a_program() -> None:
    made = plan({"nsys": (NSYS,)}, script="/bin/ls", script_arguments=("-l",))
    assert made.tracer.kind == "nsys"
    assert made.processes[0].command == ("/bin/ls", "-l")


def test_options_of_python_and_modules() -> None:
    made = plan(script="package.part", module=True, python_command=("python", "-X", "dev"), script_arguments=("-b",))
    expected = ("/usr/bin/python3", "-X", "dev", "-m", "package.part", "-b")
    assert (made.tracer.kind, made.processes[0].command) == ("embedded", expected)


@pytest.mark.parametrize(
    ("gpus", "options", "trace"),
    [((), {}, "nvtx"), (TWO_GPUS, {}, "cuda,nvtx"), (TWO_GPUS, {"trace_os": True}, "cuda,nvtx,osrt")],
)
def test_what_nsys_records(gpus: tuple[GpuRecord, ...], options: dict[str, Any], trace: str) -> None:
    made = plan({"nsys": (NSYS,), "gpus": gpus}, **options)
    assert f"--trace={trace}" in planned_command(made.processes[0], made.nsys, Path("/run"))


def test_what_nsys_would_replace_in_the_name_of_its_report_is_kept() -> None:
    command = profile_command(NsysTracing(NsysInstall(Path("/nsys"))), Path("/out%p%%"), ["ls"])
    assert command[-2:] == ["--output=/out%%p%%%%/trace", "ls"]


def test_nsys_is_given_no_option_that_it_does_not_have() -> None:
    old = NsysInstall(Path("/old/nsys"), profile_options=frozenset({"trace", "sample"}))
    assert profile_command(NsysTracing(old), Path("/run/p"), ["ls"]) == [
        "/old/nsys", "profile", "--trace=nvtx", "--sample=none", "--output=/run/p/trace", "ls",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "explain", "follows"),
    [((2023, 4, 4), False, True), ((2023, 4, 4), True, False), (None, True, False), ((2025, 3, 1), True, True)],
)
def test_an_old_nsys_does_not_follow_forks_in_the_explaining_pass(
    version: tuple[int, ...] | None, explain: bool, follows: bool
) -> None:
    install = NsysInstall(Path("/nsys"), version, profile_options=frozenset({"trace", "trace-fork-before-exec"}))
    command = profile_command(NsysTracing(install, explain=explain), Path("/run/p"), ["ls"])
    assert ("--trace-fork-before-exec=true" in command) is follows


def test_every_conflict_is_told_at_once() -> None:
    told = refusal(
        {"program": NO_SCRIPT, "output_problem": "-o out is a file, not a folder"},
        num_processes=0,
        warmup_batches=-1,
        timeout_s=0.0,
        tracer="embedded",
        nsys=Path("/x"),
        batch_pattern="(",
    ).splitlines()
    assert [line.split()[0] for line in told] == [
        "there", "-o", "-np", "-w", "--timeout", "--nsys", "batch-pattern",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_gpus": 0}, "-ng 0"),
        ({"gpu_offset": -1}, "-go -1"),
        ({"num_gpus": 3}, "3 GPUs"),
        ({"num_gpus": 2, "gpu_offset": 1}, "3 GPUs"),
        ({"gpus": ("0",), "num_gpus": 1}, "--gpus"),
        ({"gpus": ("GPU-cccc",)}, "'GPU-cccc'"),
        ({"gpus": ("7",)}, "'7'"),
        ({"gpus": ("GPU-",)}, "GPU-aaaa, GPU-bbbb"),
        ({"gpus": ("1", "GPU-bbbb")}, "GPU-bbbb"),
        ({"timeout_s": float("nan")}, "--timeout nan"),
        ({"num_processes": 10**20}, "-np 100000000000000000000"),
        ({"barrier_timeout_s": float("inf")}, "--barrier-timeout inf"),
        ({"cool_down_c": float("nan")}, "--cool-down nan"),
        ({"cool_down_limit_s": float("nan")}, "cool-down-limit nan"),
        ({"cool_down_limit_s": -5.0}, "cool-down-limit -5"),
    ],
)
def test_wrong_choices_of_gpus_and_numbers_are_refused(options: dict[str, Any], words: str) -> None:
    assert words in refusal({"gpus": TWO_GPUS}, **options)


@pytest.mark.parametrize("options", [{"num_gpus": 2}, {"gpu_offset": 1}, {"gpus": ("0",)}])
def test_gpus_are_refused_with_the_reason_where_there_are_none(options: dict[str, Any]) -> None:
    assert "no driver" in refusal(**options)


@pytest.mark.parametrize(
    ("gpus", "names", "uuids"),
    [
        (TWO_GPUS, ("1", "0"), ["GPU-bbbb", "GPU-aaaa"]),
        (TWO_GPUS, ("GPU-b",), ["GPU-bbbb"]),
        (MIG, ("0:1", "MIG-1111"), ["MIG-2222", "MIG-1111"]),
    ],
)
def test_gpus_by_name(gpus: tuple[GpuRecord, ...], names: tuple[str, ...], uuids: list[str]) -> None:
    assert [gpu.uuid for gpu in plan({"gpus": gpus}, gpus=names).gpus] == uuids


def test_numbers_choose_among_the_visible_devices() -> None:
    facts = {"gpus": TWO_GPUS, "visible_devices": "1"}
    assert [gpu.uuid for gpu in plan(facts).gpus] == ["GPU-bbbb"]
    assert "CUDA_VISIBLE_DEVICES=1" in refusal(facts, num_gpus=2)
    assert [gpu.uuid for gpu in plan({"gpus": TWO_GPUS, "visible_devices": "9,0"}, gpus=("0",)).gpus] == ["GPU-aaaa"]


def test_hidden_gpus_stay_hidden() -> None:
    made = plan({"gpus": TWO_GPUS, "visible_devices": ""})
    assert made.gpus == ()
    assert "CUDA_VISIBLE_DEVICES" not in made.processes[0].environment


def test_unlike_gpus_chosen_by_number_are_pointed_out() -> None:
    unlike = (TWO_GPUS[0], TWO_GPUS[1].model_copy(update={"name": "T4"}))
    assert [finding.code for finding in plan({"gpus": unlike, "visible_devices": "1"}).findings] == [
        "gpu-order-ambiguous"
    ]
    assert plan({"gpus": TWO_GPUS, "visible_devices": "1"}).findings == ()
