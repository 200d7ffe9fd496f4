"""The annotation files of tests/gpu/pipelines name functions that their scripts have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.launches import environment, run_to_the_end

PIPELINES = Path(__file__).parents[1] / "gpu" / "pipelines"


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("text_generation", "transformers"),
        ("image_evaluation", "torchvision"),
        ("image_classification", "onnxruntime"),
    ],
)
def test_only_the_library_may_be_missing(name: str, library: str) -> None:
    arguments = ("--dry-run", "--annotate", f"{name}.toml", f"{name}.py")
    done = run_to_the_end(arguments, environment(), PIPELINES)
    complaints = [line for line in done.stderr.splitlines() if f"finds no module {library}" not in line]
    if done.returncode:
        assert complaints == [], complaints
        assert f"finds no module {library}" in done.stderr
