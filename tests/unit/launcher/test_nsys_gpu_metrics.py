"""Which GPUs nsys is told to sample: by what a program that answers as nsys does lists, and how a trial ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfharness.errors import LaunchError
from perfharness_launcher.launch import with_gpu_metrics
from perfharness_launcher.nsys import NsysInstall, find_gpu_metrics
from perfharness_launcher.plan import explaining_pass
from perfharness_launcher.process import planned_command
from tests.support.launch_plans import MIG, NSYS, ONE_GPU, plan

ONE = (
    "Possible --gpu-metrics-devices values are:\n\t0: Hopper GH100 | NVIDIA H200 PCI[0000:19:00.0]\n\tall: Select all\n"
)
VISIBLE = "\tcuda-visible: Select GPUs that match CUDA_VISIBLE_DEVICES\n\tnone: Disable GPU Metrics [Default]\n"
SEVERAL = ONE + "\t1: Hopper GH100 | NVIDIA H200 PCI[0000:3b:00.0]\n"
OLD_CARD = "Some GPUs are not supported:\n\t0: Volta GV100 | Quadro GV100 PCI[0000:17:00.0]\n"
NONE = "Possible --gpu-metrics-device values are:\n\tNVIDIA GPUs not found, feature is not available\n"
PERMISSION = (
    "GPU Metrics: insufficient privilege, see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n\nusage: nsys profile\n"
)
BUSY = (
    "Illegal --gpu-metrics-devices usage.\nNone of the installed GPUs are supported:\n"
    "\tHopper GH100 | NVIDIA H100 80GB HBM3 PCI[0000:00:06.0] - Already under profiling\n"
    "\nusage: nsys profile [<args>] [application] [<application args>]\n"
)
"""Of nsys 2025.3 on a machine of four H100s, on each of which another nsys sampled."""


def make_nsys(folder: Path, listing: str, refused: dict[str, str] | None = None) -> NsysInstall:
    """A program that prints `listing` for help, refuses to sample some GPUs, and writes its calls to a file."""
    (folder / "listing").write_text(listing)
    cases = ""
    for number, (gpus, text) in enumerate((refused or {}).items()):
        (folder / f"refusal_{number}").write_text(text)
        cases += f"*--gpu-metrics-devices={gpus}\\ *) cat {folder}/refusal_{number}; exit 1;;\n"
    program = folder / "nsys"
    program.write_text(
        f'#!/bin/bash\necho "$CUDA_VISIBLE_DEVICES $*" >> {folder}/calls\n'
        f'case "$* " in\n*=help\\ *) cat {folder}/listing;;\n{cases}esac\n'
    )
    program.chmod(0o755)
    return NsysInstall(program, version_text="2025.3.1", profile_options=frozenset({"trace", "gpu-metrics-devices"}))


def test_the_only_gpu_is_named_by_its_number_and_of_several_those_that_the_process_uses(tmp_path: Path) -> None:
    assert find_gpu_metrics(make_nsys(tmp_path, SEVERAL + VISIBLE), {})[0] == "--gpu-metrics-devices=cuda-visible"
    (tmp_path / "calls").unlink()
    options = find_gpu_metrics(make_nsys(tmp_path, ONE + VISIBLE), {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"})
    assert options == ("--gpu-metrics-devices=0", "--gpu-metrics-frequency=10000")
    trial = (tmp_path / "calls").read_text().splitlines()[1].split()
    assert trial[0] == "GPU-aaaa"
    assert set(options) <= set(trial)


@pytest.mark.parametrize(
    ("listing", "refused", "reason"),
    [
        (NONE, {}, "GPUs not found"),
        (OLD_CARD, {}, "not supported"),
        (SEVERAL, {}, "several"),
        (ONE + VISIBLE, {"0": PERMISSION, "cuda-visible": PERMISSION}, "ERR_NVGPUCTRPERM"),
        (BUSY, {}, "under profiling"),
        (ONE, {"0": BUSY}, "under profiling"),
    ],
)
def test_why_not(tmp_path: Path, listing: str, refused: dict[str, str], reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        find_gpu_metrics(make_nsys(tmp_path, listing, refused), {})


def test_an_nsys_without_the_option_and_one_that_cannot_run(tmp_path: Path) -> None:
    for options in ((), ("gpu-metrics-devices",)):
        with pytest.raises(LaunchError):
            find_gpu_metrics(NsysInstall(tmp_path / "none", profile_options=frozenset(options)), {})


@pytest.mark.parametrize(("measured_s", "hz"), [(None, 10_000), (60.0, 10_000), (600.0, 1_000), (1e7, 10)])
def test_only_the_profiling_pass_samples_a_long_run_less_often(
    tmp_path: Path, measured_s: float | None, hz: int
) -> None:
    made = plan({"nsys": (make_nsys(tmp_path, ONE),), "gpus": ONE_GPU})
    assert with_gpu_metrics(made) is made
    second = with_gpu_metrics(explaining_pass(made, measured_s))
    assert second.findings == ()
    command = planned_command(second.processes[0], second.nsys, Path("/run"))
    assert {"--gpu-metrics-devices=0", f"--gpu-metrics-frequency={hz}"} <= set(command)


@pytest.mark.parametrize("case", ["refused", "two processes", "MIG"])
def test_without_counters_the_pass_goes_on_with_a_note(tmp_path: Path, case: str) -> None:
    nsys = make_nsys(tmp_path, NONE if case == "refused" else ONE)
    gpus = MIG if case == "MIG" else ONE_GPU
    made = plan({"nsys": (nsys,), "gpus": gpus}, num_processes=2 if case == "two processes" else 1)
    second = with_gpu_metrics(explaining_pass(made))
    assert [finding.code for finding in second.findings] == ["gpu-metrics-unavailable"]
    assert not any("gpu-metrics" in part for part in planned_command(second.processes[0], second.nsys, Path("/run")))


def test_a_machine_without_gpus_is_not_asked(tmp_path: Path) -> None:
    second = with_gpu_metrics(explaining_pass(plan({"nsys": (make_nsys(tmp_path, NONE),)})))
    assert second.findings == ()
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize(("traces", "has"), [({"cuda", "python-gil"}, True), ({"cuda"}, False)])
def test_the_interpreter_lock_is_recorded_where_this_nsys_can(traces: set[str], has: bool) -> None:
    made = plan({"nsys": (replace(NSYS, traces=frozenset(traces)),), "gpus": ONE_GPU})
    for each, expected in ((made, "cuda,nvtx"), (explaining_pass(made), "cuda,nvtx" + ",python-gil" * has)):
        assert f"--trace={expected}" in planned_command(each.processes[0], each.nsys, Path("/run"))
