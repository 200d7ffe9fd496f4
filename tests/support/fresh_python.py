"""Code in a fresh interpreter, outside of any launch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run it with options of Python and these variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERFHARNESS_", "NVTX_"))}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "launcher")])
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**kept, "PYTHONPATH": paths, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
