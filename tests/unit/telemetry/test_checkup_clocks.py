"""What `perfharness doctor` says about clocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.doctor import Health, check_clocks
from perfharness_launcher.gpus import GpuFacts
from tests.support.nvml_cards import gpu_uuid, h100_machine
from tests.support.replayed_nvml import ReplayedNvml

FACTS = GpuFacts(gpus=(GpuRecord(index=0, uuid=gpu_uuid(0)),))
WHOLE = "         0          0 4294967295\n"


def proc(root: Path, capabilities: str, uid_map: str = WHOLE) -> Path:
    folder = root / "proc" / "self"
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tpython\nCapEff:\t{capabilities}\nCapBnd:\t000001ffffffffff\n")
    (folder / "uid_map").write_text(uid_map)
    return root


@pytest.mark.parametrize(
    ("capabilities", "uid_map", "health"),
    [
        ("000001ffffffffff", WHOLE, Health.GOOD),
        ("00000000a80425fb", WHOLE, Health.ABSENT),  # root in a container, by default
        ("0000000000000000", WHOLE, Health.ABSENT),
        ("000001ffffffffff", "         0       1000          1\n", Health.ABSENT),
    ],
)
def test_permission(tmp_path: Path, capabilities: str, uid_map: str, health: Health) -> None:
    [check] = check_clocks(FACTS, proc(tmp_path, capabilities, uid_map))
    assert check.health is health


def test_a_divided_gpu_is_left_alone(tmp_path: Path) -> None:
    facts = GpuFacts(gpus=tuple(GpuRecord(index=3, uuid=f"MIG-{name}", mig=True) for name in "ab"))
    _, check = check_clocks(facts, proc(tmp_path, "000001ffffffffff"))
    assert "MIG" in check.text


def test_what_a_killed_launch_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = ReplayedNvml(h100_machine())
    monkeypatch.setattr("importlib.import_module", lambda _: replayed)
    root = proc(tmp_path, "000001ffffffffff")
    assert [check.health for check in check_clocks(FACTS, root)] == [Health.GOOD]
    with open_nvml() as nvml:
        nvml.gpus[0].ask("nvmlDeviceSetPowerManagementLimit", 700_000)
    _, left = check_clocks(FACTS, root)
    assert (left.health, left.hint) == (Health.WARNING, "perfharness clocks restore")
    assert "GPU 0 " in left.text
