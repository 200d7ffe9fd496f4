"""`--plots` of a real launch, and of a run that lies on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "samples" / "toy_pipeline.py"
PNG = b"\x89PNG\r\n\x1a\n"


def perfharness(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfharness", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_a_run_is_drawn_again_and_a_later_run_takes_its_pictures_away(tmp_path: Path) -> None:
    out = tmp_path / "out"
    picture = out / "telemetry_host.png"
    launched = perfharness("launch", "--tracer", "embedded", "--plots", "-o", out, TOY, "--stage-ms", "30")
    assert launched.returncode == 0, launched.stderr
    assert f"drawn: {picture}" in launched.stdout.replace("\n", "") or str(picture) in launched.stdout
    assert picture.read_bytes().startswith(PNG)
    picture.unlink()
    analysed = perfharness("analyze", "--plots", out)
    assert analysed.returncode == 0, analysed.stderr
    assert picture.read_bytes().startswith(PNG)
    again = perfharness("launch", "--tracer", "none", "--no-telemetry", "-o", out, TOY, "--stage-ms", "1")
    assert again.returncode == 0, again.stderr
    assert not picture.exists()
    without = perfharness("analyze", "--plots", out)
    assert without.returncode == 1
    assert "was not sampled" in without.stderr


def test_plots_without_telemetry_are_refused_before_anything_starts(tmp_path: Path) -> None:
    done = perfharness("launch", "--plots", "--no-telemetry", "-o", tmp_path / "out", TOY)
    assert done.returncode == 2
    assert "--no-telemetry" in done.stderr
    assert not (tmp_path / "out").exists()
