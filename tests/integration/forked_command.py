"""`perfharness` forked from a process that has imported it: imports are most of what a command costs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

PATIENCE_S = 120.0

FORKED = multiprocessing.get_context("forkserver")
VERBS = ("analyze", "bench", "clocks", "compare", "export", "launch", "stress")
PRELOADED = (
    "perfharness.render.console",
    "perfharness.render.views.plan",
    "perfharness.render.views.series",
    "perfharness.runs.history",
    "perfharness.runs.launch",
    "perfharness.runs.slowest",
    "scipy.special",
    "tests.support.built_models",
    "tests.support.replayed_nvml",
)
FORKED.set_forkserver_preload([__name__, *(f"perfharness.cli.{verb}" for verb in VERBS), *PRELOADED])


def run(
    arguments: Sequence[object], environ: Mapping[str, str], cwd: Path | None = None, timeout_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of `python -m perfharness`; for one that the test watches or ends, start the real one.

    One that takes too long is killed with all that it has started, as that may hold a GPU.
    """
    words = [str(one) for one in arguments]
    umask = os.umask(0)
    os.umask(umask)
    with tempfile.TemporaryDirectory() as folder:
        printed = [Path(folder) / name for name in ("stdout", "stderr")]
        process = FORKED.Process(target=_become, args=(words, dict(environ), cwd or Path.cwd(), umask, printed))
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            _kill_tree(process.pid)
            process.join()
            raise subprocess.TimeoutExpired(words, timeout_s, *(path.read_bytes() for path in printed))
        stdout, stderr = (path.read_text(encoding="utf-8") for path in printed)
    return subprocess.CompletedProcess(words, process.exitcode, stdout, stderr)


def _kill_tree(pid: int | None) -> None:
    """Kill a process and all below it; none of them can start another one meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = [psutil.Process(pid)]
        for one in tree:  # which grows
            with contextlib.suppress(psutil.NoSuchProcess):
                one.suspend()
                tree += one.children()
        for one in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def _become(words: list[str], environ: dict[str, str], cwd: Path, umask: int, printed: list[Path]) -> None:
    for number, path in enumerate(printed, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.umask(umask)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv[:] = ["perfharness", *words]

    from perfharness.cli.main import main

    main()
