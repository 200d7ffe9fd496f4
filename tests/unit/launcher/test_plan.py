"""The plan of a launch, as `--dry-run` prints it: what is started, where, by which tracer, and what is refused."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest

from perfharness.cli.main import run
from perfharness_launcher.gpus import read_cpu_list
from perfharness_launcher.nsys import find_nsys
from tests.support.nvml_cards import error, gpu_uuid, h100_machine, mig_uuid, value
from tests.support.nvml_record import NvmlRecord, device
from tests.support.replayed_nvml import replay_environment

PROGRAM = "/bin/true"
"""No Python: no interpreter is asked, which takes time."""

NO_GPU = h100_machine(0)


@dataclass
class Process:
    """A process of a dry run."""

    folder: str
    uuids: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)


@dataclass
class DryRun:
    """What a dry run printed."""

    code: int
    lines: list[str]
    errors: str
    processes: list[Process] = field(default_factory=list)

    @property
    def tracer(self) -> str:
        """The line of the tracer."""
        return next(line for line in self.lines if line.startswith("tracer: "))


Launch = Callable[..., DryRun]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Launch:
    """Prints the plan of a launch on a machine with a given NVML; the current folder is empty."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    find = functools.partial(find_nsys, root=folder, project=folder)
    monkeypatch.setattr("perfharness_launcher.machine.find_nsys", find)

    def dry_run(command: str, nvml: NvmlRecord = NO_GPU, **environ: str) -> DryRun:
        record = tmp_path / f"nvml{len(list(tmp_path.iterdir()))}.json"
        record.write_text(nvml.model_dump_json())
        for name, text in {**replay_environment(record), **environ}.items():
            monkeypatch.setenv(name, text)
        code = run(["launch", "--dry-run", *shlex.split(command)])
        captured = capsys.readouterr()
        printed = DryRun(code, captured.out.splitlines(), captured.err)
        for line in printed.lines:
            words = line.split()
            if line.startswith("proc_"):
                printed.processes.append(Process(words[0], words[2::2]))
            elif line.startswith("  ") and printed.processes:
                name, equals, text = line.strip().partition("=")
                if equals and name.isupper():
                    printed.processes[-1].environment[name] = shlex.split(text)[0] if text else ""
                elif not line.startswith("  CPUs "):
                    printed.processes[-1].command = shlex.split(line)
        return printed

    return dry_run


def executable(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


# ---- GPUs and processes ----

G = [gpu_uuid(index) for index in range(4)]
MIG = (mig_uuid(0, 0), mig_uuid(0, 1))


@pytest.mark.parametrize(
    ("gpus", "options", "visible", "expected"),
    [
        (0, "-np 2", None, [("proc_0_gpu_0", []), ("proc_1_gpu_0", [])]),
        (2, "-np 2 -ng 2", None, [(f"proc_{p}_gpu_{g}", [G[g]]) for g in (0, 1) for p in (0, 1)]),
        (2, "-go 1", None, [("proc_0_gpu_1", [G[1]])]),
        (2, "--gpus 1,0", None, [("proc_0_gpu_1", [G[1]]), ("proc_0_gpu_0", [G[0]])]),
        (2, f"--gpus {G[1][:-3]}", None, [("proc_0_gpu_1", [G[1]])]),
        (2, "", "1", [("proc_0_gpu_1", [G[1]])]),
        (2, "--gpus 0", "9,0", [("proc_0_gpu_0", [G[0]])]),
        (2, "", "", [("proc_0_gpu_0", [])]),  # hidden GPUs stay hidden
        (2, "--gpus 0:1,0:0", None, [("proc_0_gpu_0", [MIG[1]]), ("proc_1_gpu_0", [MIG[0]])]),
        (2, "-ng 3", None, [("proc_0_gpu_0", [MIG[0]]), ("proc_1_gpu_0", [MIG[1]]), ("proc_0_gpu_1", [G[1]])]),
        (4, "pairs", None, [("proc_0_gpu_0-1", G[:2])]),
        (4, "pairs -ng 4 -np 2", None, [(f"proc_{p}_gpu_{a}-{a + 1}", G[a : a + 2]) for a in (0, 2) for p in (0, 1)]),
        (4, "pairs --gpus 3,1", None, [("proc_0_gpu_3-1", [G[3], G[1]])]),
    ],
)
def test_each_process_sees_its_gpus_by_uuid(
    launch: Launch, gpus: int, options: str, visible: str | None, expected: list[tuple[str, list[str]]]
) -> None:
    if options.startswith("pairs"):
        Path("perfharness.toml").write_text("[launch]\ngpus-per-process = 2\n")
        options = options.replace("pairs", "--config perfharness.toml")
    has_mig = any(uuid in MIG for _, uuids in expected for uuid in uuids)
    machine = h100_machine(gpus, mig_instances={0: 2} if has_mig else None)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    printed = launch(f"--tracer none {options} {PROGRAM}", machine, **environ)
    assert printed.code == 0
    assert [(one.folder, one.uuids) for one in printed.processes] == expected
    for number, one in enumerate(printed.processes):
        assert one.environment.get("CUDA_VISIBLE_DEVICES", "") == ",".join(one.uuids)
        assert one.environment["PERFHARNESS_PROCESS_INDEX"] == str(number)
        assert one.environment["PERFHARNESS_NUM_PROCESSES"] == str(len(expected))
        assert one.environment["PERFHARNESS_GPU_INDEX"] == one.folder.rpartition("_")[2].replace("-", ",")


def test_unlike_gpus_and_groups_of_mig_instances_are_pointed_out(launch: Launch) -> None:
    unlike = h100_machine(2)
    value(unlike, "nvmlDeviceGetName", device(gpu_uuid(1)), result="T4")
    assert "--gpus" in launch(f"--tracer none {PROGRAM}", unlike, CUDA_VISIBLE_DEVICES="1").errors
    assert launch(f"--tracer none --gpus 1 {PROGRAM}", unlike).errors == ""
    Path("pair.toml").write_text("[launch]\ngpus-per-process = 2\n")
    mig = h100_machine(1, mig_instances={0: 2})
    assert "MIG" in launch(f"--tracer none --config pair.toml --gpus 0:0,0:1 {PROGRAM}", mig).errors


def test_gpus_that_nvml_lists_only_in_part(launch: Launch) -> None:
    """A lost GPU, one with MIG on and no instance, and an instance that does not report its memory."""
    machine = h100_machine(3, mig_instances={2: 1})
    error(machine, "nvmlDeviceGetHandleByIndex", 0, code=pynvml.NVML_ERROR_GPU_IS_LOST)
    value(machine, "nvmlDeviceGetMigMode", device(gpu_uuid(1)), result=[1, 1])
    error(machine, "nvmlDeviceGetMemoryInfo", device(mig_uuid(2, 0)), code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    printed = launch(f"--tracer none {PROGRAM}", machine)
    assert [one.uuids for one in printed.processes] == [[mig_uuid(2, 0)]]


UNCAPTURED = [f"{batches} --tracer embedded --no-telemetry" for batches in ("5", "-1:5", "a:b")]
CONTRADICTIONS = "-np 0 -w -1 --timeout 0 --tracer embedded --nsys /x --barrier-timeout 0 --cool-down nan -o file"
MISTAKEN = ["gone.py", "-o", "-np", "-w", "--timeout", "--barrier", "--annotate-torch", "--cool", "--nsys"]


@pytest.mark.parametrize(
    ("gpus", "command", "words"),
    [
        (2, f"{CONTRADICTIONS} --annotate-torch -1 gone.py", MISTAKEN),
        (2, f"--config bad.toml {PROGRAM}", ["gpus-per-process", "measure-idle", "cool-down-limit", "batch-pattern"]),
        (2, f"-ng 0 -go -1 --explain {PROGRAM}", ["-ng 0", "-go -1", "--explain"]),
        (2, f"-ng 3 {PROGRAM}", ["2 GPUs"]),
        (2, f"-ng 2 -go 1 {PROGRAM}", ["3 GPUs"]),
        (2, f"--gpus 0 -ng 1 {PROGRAM}", ["--gpus"]),
        (2, f"--gpus 7 {PROGRAM}", ["'7'"]),
        (2, f"--gpus GPU- {PROGRAM}", [G[1]]),
        (2, f"--gpus 1,{G[1]} {PROGRAM}", ["twice"]),
        (4, f"--config pair.toml -ng 3 {PROGRAM}", ["3 GPUs"]),
        (0, f"--config pair.toml {PROGRAM}", ["no usable GPU"]),
        (0, f"-ng 2 {PROGRAM}", ["no usable GPU"]),
        (0, f"--require-exclusive {PROGRAM}", ["--require-exclusive"]),
        (0, f"-m {PROGRAM}", ["no GPU"]),
        (0, f"--cpu-bind numa {PROGRAM}", ["--cpu-bind numa"]),
        (
            0,
            f"--capture-batches 5:5 --explain {PROGRAM}",
            ["none", "FIRST:LAST", "--explain", "--no-telemetry", "tracer"],
        ),
        *((0, f"--capture-batches {words} {PROGRAM}", ["FIRST:LAST"]) for words in UNCAPTURED),
        (0, f"-o caf{chr(0xDCE9)} {PROGRAM}", ["UTF-8"]),
        (0, "folder", ["folder"]),
        (0, "folder.py", ["folder.py"]),
        (0, "text", ["python text"]),
        (0, "gone", ["--module"]),
        (0, "python gone", ["gone"]),
        (0, "/no/python text", ["/no/python"]),
        (0, "python -m package.inner", ["__main__"]),
        (0, "--module package.part.more", ["package.part"]),
        (0, "--module gone.more", ["gone"]),
    ],
)
def test_what_is_refused_and_with_which_words(launch: Launch, gpus: int, command: str, words: list[str]) -> None:
    """One line for each mistake, all at once."""
    for name in ("folder", "folder.py", "package/inner"):
        Path(name).mkdir(parents=True)
    for name in ("file", "text", "package/__init__.py", "package/part.py", "package/inner/__init__.py"):
        Path(name).write_text("")
    Path("pair.toml").write_text("[launch]\ngpus-per-process = 2\n")
    Path("bad.toml").write_text(
        "[launch]\ngpus-per-process = 0\nmeasure-idle = -1\ncool-down-limit = -5\nbatch-pattern = '('\n"
    )
    tracer = "" if "--tracer" in command else "--tracer none"
    refused = launch(f"{tracer} {command}", h100_machine(gpus))
    assert (refused.code, refused.lines) == (2, [])
    told = [line for line in refused.errors.splitlines() if line.startswith("perfharness: ")]
    assert [word for word, line in zip(words, told, strict=True) if word not in line] == []


# ---- CPUs ----


@pytest.mark.parametrize(
    ("nodes", "near", "bind", "bound"),
    [
        ("0 1", 0b10, "auto", "1"),
        ("0-1", 0b10, "auto", None),  # one memory node
        ("0-1", 0b10, "numa", "1"),
        ("0 1", 0b10, "none", None),
        ("0 1", 0b100, "auto", None),  # none of them may be used
        ("0-2,8-9 10", 1 << 10, "auto", None),  # most of the CPUs are elsewhere
    ],
)
def test_a_process_is_bound_to_the_cpus_near_its_gpu(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, nodes: str, near: int, bind: str, bound: str | None
) -> None:
    lists = [read_cpu_list(text) for text in nodes.split()]
    machine = h100_machine(1)
    value(machine, "nvmlDeviceGetCpuAffinity", device(gpu_uuid(0)), result=[near])
    monkeypatch.setattr("os.sched_getaffinity", lambda _: frozenset().union(*lists))
    monkeypatch.setattr("perfharness_launcher.gpus.numa_nodes", lambda: lists)
    printed = launch(f"--tracer none --cpu-bind {bind} {PROGRAM}", machine)
    assert printed.code == 0
    assert [line.split()[1] for line in printed.lines if line.startswith("  CPUs ")] == ([f"{bound}:"] if bound else [])


# ---- tracers ----

NSYS_HELP = "  -t, --trace=\n  -s, --sample=\n  --wait=\n  --force-overwrite=\n  --trace-fork-before-exec=\n"


def make_nsys(folder: Path, version: str = "2025.3.1", cupti: str = "13.0", *, importer: bool = True) -> str:
    """A program that answers as an nsys does, and records nothing."""
    if importer:
        executable(folder / "host-linux-x64" / "QdstrmImporter", "#!/bin/sh\n")
    target = folder / "target-linux-x64"
    path = executable(
        target / "nsys",
        f'#!/bin/sh\n[ "$1" = --version ] && echo "NVIDIA Nsight Systems version {version}.1-1v0"\n'
        f'[ "$2" = --help ] && printf "{NSYS_HELP}"\nexit 0\n'.replace("\n  ", "\\n  "),
    )
    (target / f"libcupti.so.{cupti}").touch()
    return path


def make_python(folder: Path, nvtx: str = "0.2.11", *, has_perfharness: bool = True) -> str:
    """An interpreter that answers questions about itself."""
    answer = {"version": "3.11.7", "nvtx": nvtx, "packages": {}, "has_perfharness": has_perfharness, "functions": []}
    return executable(folder / "python3", f"#!/bin/sh\necho '{json.dumps(answer)}'\n")


OLD = {"version": "2023.4.4"}
OLD_CUDA = {**OLD, "cupti": "12.4"}


@pytest.mark.parametrize(
    ("nsys", "python", "options", "script", "words"),
    [
        ([{}], {}, "", "python3 x.py", "nsys 2025.3.1"),
        ([OLD], {}, "", "python3 x.py", "nsys 2023.4.4"),
        ([{}], {"nvtx": "0.2.17"}, "", "python3 x.py", "nsys 2025.3.1"),
        ([OLD], {"nvtx": "0.2.12"}, "", "python3 x.py", "embedded nvtx 0.2.12"),
        ([OLD], {"nvtx": "0.2.12"}, "", "torchrun --nproc-per-node 2 x.py", "embedded nvtx 0.2.12"),
        ([OLD], {"nvtx": "0.2.12"}, "", "env A=1 python3 x.py", "embedded nvtx 0.2.12"),
        ([OLD], {"nvtx": "0.2.12"}, "", PROGRAM, "nsys 2023.4.4"),
        ([{"version": "2024.5.1"}], {"nvtx": "0.2.17"}, "", "python3 x.py", "embedded 2024.5.1"),  # tried in vain
        ([{"importer": False}, OLD], {}, "", "python3 x.py", "nsys 2023.4.4"),
        ([{"importer": False}], {}, "", "python3 x.py", "embedded importer"),
        ([], {}, "", "python3 x.py", "embedded nsys"),
        ([], {}, "", PROGRAM, "embedded nsys"),
        ([OLD_CUDA], {}, "", "gpu python3 x.py", "embedded 13.0"),
        ([{}], {}, "", f"python3 x.py {chr(0xDCE9)}", "embedded UTF-8"),
        ([OLD_CUDA], {"nvtx": "0.2.17"}, "--tracer nsys", "gpu python3 x.py", "nsys nvtx 0.2.17|13.0"),
        ([{}], {}, "--tracer none", "python3 x.py", "none asked"),
        ([], {}, "--tracer nsys", "python3 x.py", "1 --install-nsys"),
        ([{"importer": False}], {}, "--tracer nsys", "python3 x.py", "1 importer"),
        ([{}], {}, "--tracer nsys", f"python3 x.py {chr(0xDCE9)}", "2 UTF-8"),
        ([], {"has_perfharness": False}, "", "python3 x.py", "2 perfharness"),
        ([], {}, "--tracer embedded", "python3 -I x.py", "2 -I"),
        ([], {}, "--annotate-torch 1 --tracer none", "python3 -uS x.py", "2 -uS"),
        ([], {}, "--annotate a.toml --tracer none", "python3 -uE x.py", "2 -uE"),
        ([], {}, "--annotate a.toml --tracer none", PROGRAM, "2 --annotate"),
        ([], {}, "--nsys /no/nsys", "python3 x.py", "2 /no/nsys"),
        ([OLD], {}, "--capture-batches 1:5 --no-telemetry", "python3 x.py", "2 capture-range"),
    ],
)
def test_which_tracer_and_why(
    launch: Launch,
    tmp_path: Path,
    nsys: Sequence[dict[str, Any]],
    python: dict[str, Any],
    options: str,
    script: str,
    words: str,
) -> None:
    """`words`: the tracer, or the exit code, and words of the reason or of the notes."""
    bin_folder = tmp_path / "bin"
    make_python(bin_folder, **python)
    executable(bin_folder / "torchrun", f"#!{bin_folder}/python3\n")
    Path("x.py").write_text("")
    Path("a.toml").write_text('[[range]]\nfunction = "__main__:work"\n')
    for number, one in enumerate(nsys):
        make_nsys(Path.cwd() / f"opt/nvidia/nsight-systems/{number}", **one)
    path = f"{bin_folder}:/usr/bin:/bin"
    machine = h100_machine(1) if script.startswith("gpu ") else NO_GPU
    kind, _, reasons = words.partition(" ")
    printed = launch(f"{options} {script.removeprefix('gpu ')}", machine, PATH=path)
    if kind.isdigit():
        assert (printed.code, printed.lines) == (int(kind), [])
        text = printed.errors
    else:
        assert printed.code == 0, printed.errors
        assert printed.tracer.split()[1] == kind
        text = printed.tracer + printed.errors
        command = printed.processes[0].command
        assert (command[0].endswith("nsys"), "profile" in command) == (kind == "nsys", kind == "nsys")
    assert [reason for reason in reasons.split("|") if reason not in text] == []


@pytest.mark.parametrize(
    ("options", "gpus", "trace"),
    [("", 0, "nvtx"), ("", 1, "cuda,nvtx"), ("--config os.toml", 1, "cuda,nvtx,osrt")],
)
def test_what_nsys_records_in_both_passes(launch: Launch, tmp_path: Path, options: str, gpus: int, trace: str) -> None:
    Path("os.toml").write_text("[launch]\ntrace-os = true\n")
    nsys = make_nsys(tmp_path / "nsys")
    options += " -m" * gpus
    printed = launch(f"--nsys {nsys} {options} --explain --cool-down 40 -o o%p {PROGRAM}", h100_machine(gpus))
    first, second = printed.processes
    here = Path.cwd()
    assert first.command[:3] == [nsys, "profile", f"--trace={trace}"]
    assert f"--output={here}/o%%p/proc_0_gpu_0/trace" in first.command, "nsys would replace %p"
    assert "--force-overwrite=true" in first.command
    assert not any(word.startswith("--cpuctxsw") for word in first.command), "this nsys does not have it"
    assert second.environment.pop("PERFHARNESS_EXPLAIN") == "1"
    assert second.environment.pop("PERFHARNESS_OUTPUT_DIR") == f"{here}/o%p/explain/proc_0_gpu_0"
    assert first.environment.pop("PERFHARNESS_OUTPUT_DIR") == f"{here}/o%p/proc_0_gpu_0"
    assert (second.folder, second.environment) == (first.folder, first.environment)
    assert sum("cool-down" in line for line in printed.lines) == 1, "the profiling pass does not wait"


# ---- what SCRIPT is ----


@pytest.mark.parametrize(
    ("words", "command", "noted"),
    [
        ("x.py -b 4", f"{sys.executable} x.py -b 4", ""),
        ("x.py -np 2 --output_dir=x --mine", None, "-np, --output_dir"),
        ("x.py -- -np 2", None, ""),
        ("--module package.part -w 1", f"{sys.executable} -m package.part -w 1", "-w"),
        ("python3 -u x.py -u b", "HERE/python3 -u x.py -u b", ""),
        ("HERE/python3 -X dev -Wd -OO text x", "HERE/python3 -X dev -Wd -OO text x", ""),
        ("python3 -m package.part -m x", "HERE/python3 -m package.part -m x", "-m"),
        ("python3 -mpackage.part -c", "HERE/python3 -m package.part -c", ""),
        ("python3 -uX dev -Bm package.part a", "HERE/python3 -uX dev -B -m package.part a", ""),
        ("python3 app", "HERE/python3 app", ""),  # a folder with a __main__.py
        ("python3 -c 1 x.py", "HERE/python3 -c 1 x.py", ""),
        ("tool a -np 2", "HERE/tool a -np 2", "-np"),
        ("torchrun --nproc-per-node 2 x.py -w 1", "HERE/torchrun --nproc-per-node 2 x.py -w 1", "-w"),
        ("torchrun -o x -m package.part -np 1", "HERE/torchrun -o x -m package.part -np 1", "-np"),
        ("mpirun -np 4 python3 -u x.py", "HERE/mpirun -np 4 python3 -u x.py", ""),
        ("mpirun -np 4 env A=1 python3 -m package.part -w 1", None, "-w"),
        ("mpirun -np 4 ./a.out -o x", "HERE/mpirun -np 4 ./a.out -o x", ""),
        ("conda run -n two python3 -u x.py -w 1", "HERE/conda run -n two python3 -u x.py -w 1", "-w"),
        ("conda info", "HERE/conda info", ""),
        ("echo -n 'a b'", "/bin/echo -n 'a b'", ""),
    ],
)
def test_scripts_modules_and_programs(
    launch: Launch, tmp_path: Path, words: str, command: str | None, noted: str
) -> None:
    """Options of ours behind the script are noted, but not those of a program in front of it."""
    bin_folder = tmp_path / "bin"
    make_python(bin_folder)
    heads = {"tool": f"#!{bin_folder}/python3 -sE", "conda": "#!/usr/bin/env -S python3 -u", "mpirun": "\x7fELF"}
    for name, head in {**heads, "torchrun": f"#!{bin_folder}/python3"}.items():
        executable(bin_folder / name, f"{head}\n")
    Path("app").mkdir()
    Path("package").mkdir()
    for name in ("x.py", "text", "app/__main__.py", "package/__init__.py", "package/part.py"):
        Path(name).write_text("raise SystemExit('imported')\n")
    words = words.replace("HERE", str(bin_folder))
    printed = launch(f"--tracer none {words}", PATH=f"{bin_folder}:/bin")
    assert printed.code == 0, printed.errors
    assert printed.errors.startswith(f"perfharness: {noted} after ") if noted else printed.errors == ""
    if command is not None:
        assert printed.processes[0].command == shlex.split(command.replace("HERE", str(bin_folder)))


def test_the_interpreter_of_what_a_program_starts_need_not_be_here(launch: Launch, tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "docker", "\x7fELF")
    printed = launch("docker run python3 x.py", PATH=str(tmp_path / "bin"))
    assert printed.processes[0].command == [str(tmp_path / "bin" / "docker"), "run", "python3", "x.py"]


def test_options_reach_the_process(launch: Launch) -> None:
    for options in (
        "-np 2 -w 4 -ll debug -o x",
        "--num_processes=2 --warmup_batches=4 --log_level=DEBUG --output_dir=x",
    ):
        printed = launch(f"--tracer none {options} {PROGRAM}")
        assert printed.processes[1].environment == {
            "PERFHARNESS_OUTPUT_DIR": f"{Path.cwd()}/x/proc_1_gpu_0",
            "PERFHARNESS_PROCESS_INDEX": "1",
            "PERFHARNESS_NUM_PROCESSES": "2",
            "PERFHARNESS_GPU_INDEX": "0",
            "PERFHARNESS_TRACER": "none",
            "PERFHARNESS_WARMUP_BATCHES": "4",
            "PERFHARNESS_LOG_LEVEL": "debug",
        }
        assert not Path("x").exists()
