"""recorder.json, for each way in which a process can end, and what slowed it down."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import fresh_python

PIPELINE = """
import os, signal, sys
from perfharness import PerfRecorder
perf = PerfRecorder("rec", {"batch_size": 4})
perf.push_range("pipeline")
for i in range(3):
    with perf.batch(i, total_items=4) as batch:
        with perf.range("stage"):
            pass
        batch.delete_range = i == 2
"""
CLOSE = "\nperf.pop_range(); perf.finalize()\n"
FAIL = "\ntry:\n    with perf.batch(3): 1 / 0\nexcept ZeroDivisionError: pass\n"
THREADS = """
import threading
def work():
    with perf.batch(9, total_items=1): pass
for _ in range(4):
    t = threading.Thread(target=work); t.start(); t.join()
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def run(code: str, folder: Path, *options: str, expect: int = 0, environ: Mapping[str, str] = {}) -> Any:
    done = fresh_python.run(code, *options, PERFHARNESS_OUTPUT_DIR=str(folder), **environ)
    assert done.returncode == expect, done.stderr
    return done


def journal(folder: Path, name: str = "recorder.json") -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


COUNTS = {"ranges": 7, "batches": 3, "items": 12, "deleted_ranges": 1, "failed_batches": 0, "threads": 1}
OPEN = COUNTS | {"open_ranges": ["pipeline"], "finalized": False}
CLOSED = COUNTS | {"open_ranges": [], "finalized": True}
FAILED = CLOSED | {"ranges": 8, "batches": 4, "deleted_ranges": 2, "failed_batches": 1}


@pytest.mark.parametrize(
    ("code", "exit_code", "ended", "exception", "recorder"),
    [
        (CLOSE, 0, "finalized", None, CLOSED),
        (CLOSE + "os._exit(3)", 3, "finalized", None, CLOSED),
        ("", 0, "exit", None, OPEN),
        ("sys.exit(3)", 3, "exit", None, OPEN),
        ("os._exit(3)", 3, "exit", None, OPEN),
        ("raise KeyError('password=planted')", 1, "exception", "KeyError", OPEN),
        (CLOSE + "raise KeyboardInterrupt", -2, "exception", "KeyboardInterrupt", CLOSED),
        ("perf.finalize if os.execv('/bin/true', ['true']) else 0", 0, "exec", None, OPEN),
        (FAIL + CLOSE, 0, "finalized", None, FAILED),
        (THREADS + CLOSE, 0, "finalized", None, CLOSED | {"ranges": 11, "batches": 7, "items": 16, "threads": 5}),
    ],
)
def test_however_a_process_ends(
    tmp_path: Path, code: str, exit_code: int, ended: str, exception: str | None, recorder: dict[str, Any]
) -> None:
    done = run(PIPELINE + code, tmp_path, expect=exit_code)
    content = journal(tmp_path)
    assert files(tmp_path) == ["recorder.json"]
    assert (content["schema_version"], content["ended"], content["exception"]) == (1, ended, exception)
    (found,) = content["recorders"]
    assert found == {"name": "rec", "domain": "perfharness", "args": {"batch_size": 4}} | recorder
    assert (content["python_version"], content["listening"]) == (sys.version.split()[0], False)
    assert content["nvtx_version"].count(".") == 2
    assert "planted" not in json.dumps(content)
    assert exception is None or exception in done.stderr.splitlines()[-1], "the traceback is printed as always"


def test_a_killed_process_leaves_counts_of_the_last_second(tmp_path: Path) -> None:
    loop = "import time\nfor i in range(12):\n    with perf.batch(i): time.sleep(0.11)\n"
    run(PIPELINE + loop + KILL, tmp_path, expect=-9)
    content = journal(tmp_path)
    assert (content["ended"], content["recorders"][0]["open_ranges"]) == ("running", ["pipeline"])
    assert 10 <= content["recorders"][0]["ranges"] <= 19
    assert content["startup"]["first_recorder_unix_ns"] <= content["startup"]["first_batch_unix_ns"]


def test_several_recorders_and_a_hook_of_the_script(tmp_path: Path) -> None:
    code = "import sys; sys.excepthook = lambda *_: print('theirs')\n" + PIPELINE
    code += "name = os.fsdecode(b'r\\xe9')\nPerfRecorder(name, {'a': name}, domain='mine').finalize()\n1 / 0"
    done = run(code, tmp_path, expect=1)
    content = journal(tmp_path)
    assert [(r["name"], r["domain"], r["finalized"]) for r in content["recorders"]] == [
        ("rec", "perfharness", False),
        ("r\\udce9", "mine", True),
    ]
    assert (done.stdout, content["exception"]) == ("theirs\n", "ZeroDivisionError")
    json.dumps(content, ensure_ascii=False).encode()


# ---- several processes ----


def test_a_program_that_becomes_another_keeps_both(tmp_path: Path) -> None:
    second = PIPELINE.replace("rec", "second") + CLOSE
    run(PIPELINE + CLOSE + f"os.execv(sys.executable, [sys.executable, '-c', {second!r}])", tmp_path)
    content = journal(tmp_path)
    assert [(one["name"], one["ranges"]) for one in content["recorders"]] == [("rec", 7), ("second", 7)]
    assert files(tmp_path) == ["recorder.json"]


def test_a_forked_child_leaves_the_parents_file_alone(tmp_path: Path) -> None:
    """What it inherited is the parent's to tell, a batch that it closes for its parent too."""
    code = PIPELINE + (
        "with perf.range('around'), perf.batch(100, total_items=50):\n"
        "    with perf.batch(0, total_items=3, message='before'): pass\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        with perf.batch(0, total_items=7, message='inner'): pass\n"
        "if child == 0: sys.exit(0)\n"
        "quiet = os.fork()\n"
        "if quiet == 0: sys.exit(0)\n"
        "os.waitpid(child, 0), os.waitpid(quiet, 0); perf.pop_range(); perf.finalize(); print(child)"
    )
    child = run(code, tmp_path).stdout.strip()
    assert files(tmp_path) == ["recorder.json", f"recorder_{child}.json"]
    (parent,), (of_child,) = (
        journal(tmp_path, name)["recorders"] for name in ("recorder.json", f"recorder_{child}.json")
    )
    assert (of_child["ranges"], of_child["batches"], of_child["items"], of_child["open_ranges"]) == (1, 1, 7, [])
    assert (parent["items"], parent["finalized"]) == (12 + 3 + 50, True)


@pytest.mark.parametrize(("end", "least"), [("os._exit(0)", 3), (KILL, 1)])
def test_a_forked_child_that_calls_no_exit_function(tmp_path: Path, end: str, least: int) -> None:
    """Killed, it leaves what it had counted with its first range."""
    code = PIPELINE + (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    for name in ('first', 'second', 'third'):\n"
        "        with perf.range(name): pass\n"
        f"    {end}\n"
        "os.waitpid(child, 0); perf.pop_range(); perf.finalize(); print(child)"
    )
    child = run(code, tmp_path).stdout.strip()
    of_child = journal(tmp_path, f"recorder_{child}.json")
    assert of_child["recorders"][0]["ranges"] in range(least - 1, 4)
    assert of_child["ended"] == ("exit" if least == 3 else "running")


def test_locks_that_another_thread_holds_at_a_fork_are_free_in_the_child(tmp_path: Path) -> None:
    """Threads make recorders and stacks all along, so that some lock is held in some of the forks."""
    code = PIPELINE + (
        "import threading\n"
        "def make(number):\n"
        "    while True:\n"
        "        PerfRecorder('x'); t = threading.Thread(target=lambda: perf.range(str(number)).__enter__())\n"
        "        t.daemon = True; t.start(); t.join()\n"
        "for number in range(2): threading.Thread(target=make, args=(number,), daemon=True).start()\n"
        "for _ in range(20):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        signal.alarm(20)\n"
        "        with PerfRecorder('new', domain='another').range('a'), perf.range('b', domain='new'): pass\n"
        "        worker = threading.Thread(target=lambda: perf.push_range('c')); worker.start(); worker.join()\n"
        "        os._exit(7)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "os._exit(0)"
    )
    run(code, tmp_path)


@pytest.mark.parametrize("parent", [PIPELINE, "import sys\n"])
def test_processes_of_one_launch_have_a_file_each(tmp_path: Path, parent: str) -> None:
    inner = "from perfharness import PerfRecorder; PerfRecorder('inner').finalize()"
    start = f"subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    run(f"{parent}import subprocess\nfor _ in range(2): {start}", tmp_path)
    assert len(files(tmp_path)) == 2 + (parent is PIPELINE)
    assert [r["name"] for r in journal(tmp_path)["recorders"]] == ["rec" if parent is PIPELINE else "inner"]


@pytest.mark.parametrize("content", ["[]", '{"pid": 1, "parent_pid": 1, "recorders": []}'])
def test_the_file_of_an_older_run_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "recorder.json").write_text(content, encoding="utf-8")
    run("import os; os.umask(0o077)\n" + PIPELINE, tmp_path)
    assert files(tmp_path) == ["recorder.json"]
    assert journal(tmp_path)["recorders"][0]["name"] == "rec"
    assert (tmp_path / "recorder.json").stat().st_mode & 0o777 == 0o600, "the umask is respected"


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = run(PIPELINE + CLOSE + "print('done')", tmp_path / "file")
    assert done.stdout == "done\n"
    assert done.stderr.count("recorder.json") == 1


# ---- what slows the process down ----

CODE = """
import gc, threading, tracemalloc
from types import SimpleNamespace as S
class Monitoring: get_tool = staticmethod(lambda number: "cover" if number == 1 else None)
sys.monitoring = Monitoring
sys.gettotalrefcount = print
sys.is_stack_trampoline_active = lambda: True
sys.settrace(lambda *_: None)
sys.setprofile(lambda *_: None)
tracemalloc.start()
gc.set_debug(gc.DEBUG_SAVEALL)
sys.modules["torch"] = S(
    autograd=S(_profiler_enabled=lambda: True), is_anomaly_enabled=lambda: True, compiler=None,
    are_deterministic_algorithms_enabled=lambda: True, backends=S(cudnn=S(enabled=False)),
    _C=S(_cuda_get_sync_debug_mode=lambda: 1),
)
"""
SLOW_BY_CODE = """profiler (|trace function|cover|perf trampolines|tracemalloc|libasan|development mode|debug build
garbage collector|PyTorch profiler|anomaly|deterministic|cuDNN|synchronization"""
SLOW_BY_VARIABLE = """
CUDA_LAUNCH_BLOCKING=1 CUDA_CACHE_DISABLE=1 CUDA_FORCE_PTX_JIT=1 CUDNN_LOGINFO_DBG=1 CUBLAS_LOGINFO_DBG=1
PYTORCH_NO_CUDA_MEMORY_CACHING=1 TORCH_COMPILE_DISABLE=1 TORCHDYNAMO_DISABLE=1 TORCH_COMPILE_DEBUG=1
TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 TORCH_NCCL_BLOCKING_WAIT=1 TRITON_INTERPRET=1 TRITON_ALWAYS_COMPILE=true
TRITON_DEBUG=1 MKL_VERBOSE=1 ONEDNN_VERBOSE=2 DNNL_VERBOSE=1 PYTHONASYNCIODEBUG=1 MALLOC_PERTURB_=7
NVIDIA_TF32_OVERRIDE=0 PYTORCH_JIT=0 TF_ENABLE_ONEDNN_OPTS=0 PYTHONMALLOC=debug TORCH_DISTRIBUTED_DEBUG=DETAIL
"""


def test_what_slows_a_process_down(tmp_path: Path) -> None:
    """Once all that can be on together, PyTorch's by a stand-in; once nothing, with nvtx switched off."""
    environ = dict(one.split("=") for one in [*SLOW_BY_VARIABLE.split(), "LD_PRELOAD=/nowhere/libasan.so"])
    run(f"{PIPELINE}{CODE}{CLOSE}", tmp_path / "slow", "-X", "dev", environ=environ)
    named = "; ".join(journal(tmp_path / "slow")["instruments"])
    expected = [*SLOW_BY_CODE.replace("\n", "|").split("|"), *SLOW_BY_VARIABLE.split()]
    assert [name for name in expected if name not in named] == []
    quick = {"CUDA_LAUNCH_BLOCKING": "0", "NVIDIA_TF32_OVERRIDE": "1", "NVTX_DISABLE": "1"}
    run(PIPELINE + CLOSE, tmp_path / "plain", environ=quick)
    content = journal(tmp_path / "plain")
    assert (content["instruments"], content["nvtx_disabled"], content["cuda_loaded"]) == ([], True, False)


def test_a_debugger_that_is_attached(tmp_path: Path) -> None:
    """The parent traces its child, as strace does."""
    attached = PIPELINE + (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "if libc.ptrace(0, 0, 0, 0): print('refused')\n"  # PTRACE_TRACEME
        "perf.pop_range(); perf.finalize(); libc.ptrace(17, os.getppid(), 0, 0); os._exit(0)"
    )
    done = run(f"import os\nif not os.fork():\n    exec({attached!r})\nos.wait()", tmp_path)
    if "refused" in done.stdout:
        pytest.skip("this machine forbids ptrace")
    assert "attached debugger" in journal(tmp_path)["instruments"]


# ---- arguments ----

ARGUMENTS = """
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
class Colour(Enum): RED = 1
class Angry:
    def __repr__(self): raise ValueError
class Client:
    def __repr__(self): return "Client(password='SECRET')"
args = SimpleNamespace(
    path=Path("/a"), nothing=None, number=1.5, nan=float("nan"), colour=Colour.RED, angry=Angry(), long=b"x" * 5000,
    nested={"list": [1, (2, "x")], 3: True}, words=["a", "b"], token=None, max_tokens=5,
    url="https://me:SECRET@host/", bearer="SECRET", db_dsn="SECRET", client=Client(),
    config={"headers": {"Authorization": "SECRET"}, "deeper": [{"apiKey": "SECRET"}]}, line=["--api-key", "SECRET"],
)
args.config["self"] = args.config
from perfharness import PerfRecorder
PerfRecorder("rec", default_args=args); PerfRecorder("rec", {"more": 1}); PerfRecorder("list", [1, 2])
"""


def test_arguments_become_json_without_secrets(tmp_path: Path) -> None:
    run(ARGUMENTS, tmp_path)
    content = journal(tmp_path)
    found, other = (one["args"] for one in content["recorders"])
    assert "SECRET" not in json.dumps(content)
    assert other == {"args": [1, 2]}
    assert [found[name] for name in ("nothing", "number", "nan", "words", "more")] == [None, 1.5, "nan", ["a", "b"], 1]
    assert (found["path"], found["nested"]) == ("PosixPath('/a')", {"list": [1, [2, "x"]], "3": True})
    assert (found["token"], found["max_tokens"], found["bearer"], len(found["long"])) == (None, 5, "***", 1000)
