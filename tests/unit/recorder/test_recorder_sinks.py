"""Where a recorder writes: the embedded log, nvtx of each shape, or nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from perfharness import PerfRecorder
from perfharness.errors import RecorderError
from perfharness.model import environment
from perfharness.recorder import nvtx_channels
from perfharness.recorder.channels import LogSink, SilentSink
from tests.unit.recorder_events import drawn, recording

ROOT = Path(__file__).parents[3]


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, outside any launch unless `env` says otherwise."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERFHARNESS_", "NVTX_"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "launcher")]), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


EVERYTHING = """
import sys
from perfharness import PerfRecorder
from perfharness.errors import RecorderError
perf = PerfRecorder("rec")
other = PerfRecorder("other")
with perf.range("a"), perf.batch(0, total_items=1):
    perf.push_range("b", "red", "domain", "category")
    perf.pop_range("domain")
for call in (perf.pop_range, lambda: perf.push_range("batch", batch_idx="x"), lambda: perf.push_range("")):
    try:
        call()
    except RecorderError:
        pass
    else:
        raise SystemExit("not checked")
perf.push_range("open")
try:
    perf.finalize()
except RecorderError as error:
    print(error)
"""


def legacy_nvtx(*, payload: bool) -> ModuleType:
    nvtx = ModuleType("nvtx")

    def push_with(message: str, payload: int | None = None) -> None: ...
    def push_without(message: str) -> None: ...

    vars(nvtx).update(
        enabled=lambda: True,
        push_range=push_with if payload else push_without,
        annotate=lambda *_args, **_kw: SimpleNamespace(
            attributes=SimpleNamespace(), domain=SimpleNamespace(handle=None)
        ),
        nvtx=SimpleNamespace(Domain=object),
    )
    functions = dict.fromkeys(["push_range", "pop_range", "start_range", "end_range", "mark"], lambda *_: None)
    library = ModuleType("nvtx._lib")
    vars(library).update(functions)
    sys.modules["nvtx._lib"] = library  # undone by the fixture
    return nvtx


@pytest.fixture
def as_nvtx(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "nvtx._lib", sys.modules.get("nvtx._lib") or ModuleType("nvtx._lib"))
    monkeypatch.setattr(nvtx_channels, "_warned", set())
    monkeypatch.delenv(environment.TRACER, raising=False)

    def install(module: ModuleType | None) -> None:
        monkeypatch.setitem(sys.modules, "nvtx", module)

    return install


def test_nvtx_without_payloads_warns_and_is_refused_where_nsys_traces(
    as_nvtx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_nvtx(legacy_nvtx(payload=False))
    with pytest.warns(RuntimeWarning, match=r"0\.2\.10") as caught:
        perf = PerfRecorder("rec")
    assert [warning.filename for warning in caught] == [__file__]
    assert isinstance(perf._core.sink, SilentSink)
    monkeypatch.setenv(environment.TRACER, "nsys")
    with pytest.raises(RecorderError, match=r"0\.2\.10"):
        PerfRecorder("other")


def test_missing_nvtx_warns_once_and_everything_works(as_nvtx: Any) -> None:
    as_nvtx(None)
    with pytest.warns(RuntimeWarning, match="pip install") as caught:
        perf, _ = PerfRecorder("rec"), PerfRecorder("again")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert isinstance(perf._core.sink, SilentSink)


def test_embedded_log_needs_no_nvtx_and_is_kept(as_nvtx: Any) -> None:
    as_nvtx(None)
    with recording() as log, warnings.catch_warnings():
        warnings.simplefilter("error")
        perf = PerfRecorder("rec")
    with perf.range("a"):
        pass
    assert drawn(log) == "!recorder a()"
    assert isinstance(perf._core.sink, LogSink)


@pytest.mark.parametrize(
    ("before", "env", "sink", "warnings"),
    [
        ("", {}, "NvtxSink", 0),
        ("", {"NVTX_DISABLE": "1"}, "SilentSink", 0),
        ("import sys; sys.modules['nvtx'] = None\n", {}, "SilentSink", 1),
    ],
)
def test_outside_a_launch_everything_works_and_leaves_no_files(
    tmp_path: Path, before: str, env: dict[str, str], sink: str, warnings: int
) -> None:
    code = f"{before}import os; os.chdir({str(tmp_path)!r})\n{EVERYTHING}\nprint(type(perf._core.sink).__name__)"
    done = run(code, **env)
    assert done.returncode == 0, done.stderr
    assert (done.stderr.count("RuntimeWarning"), bool(done.stderr)) == (warnings, warnings > 0)
    assert done.stdout.splitlines()[-1].removeprefix("Legacy") == sink
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("with_log", [False, True])
def test_a_recorder_brings_no_library_along(tmp_path: Path, with_log: bool) -> None:
    code = "import sys; import perfharness.recorder; from perfharness import PerfRecorder, get_default_arg_parser\n"
    heavy = ["numpy", "torch", "pyarrow", "rich", "pydantic", "perfharness_launcher", "nvtx"]
    if with_log:
        code += (
            f"from perfharness.tracer import range_log; range_log.install(range_log.RangeLog({str(tmp_path)!r}))\n"
            "perf = PerfRecorder('rec')\n"
            "with perf.batch(0, total_items=1): pass\n"
            "perf.finalize()\n"
        )
    else:
        heavy.append("asyncio")
    done = run(f"{code}print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


def test_each_flush_of_nsys_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes what it holds with a new name only: after an exec that failed a process ends with another flush."""
    marks: list[str] = []
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(mark=marks.append))
    monkeypatch.setenv(environment.TRACER, "nsys")
    nvtx_channels.flush_nsys()
    nvtx_channels.flush_nsys()
    assert len({*marks}) == 2
