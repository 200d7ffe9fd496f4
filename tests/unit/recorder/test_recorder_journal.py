"""recorder.json, for each way in which a process can end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfharness.recorder.json_values import arguments_to_json

ROOT = Path(__file__).parents[3]

PIPELINE = """
import os, sys
from perfharness import PerfRecorder
perf = PerfRecorder("rec", {"batch_size": 4})
perf.push_range("pipeline")
for i in range(3):
    with perf.batch(i, total_items=4) as batch:
        with perf.range("stage"):
            pass
        batch.delete_range = i == 2
"""


def run(code: str, folder: Path, *, expect: int = 0) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERFHARNESS_", "NVTX_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "PYTHONPATH": str(ROOT), "PERFHARNESS_OUTPUT_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == expect, done.stderr
    return done


def journal(folder: Path, name: str = "recorder.json") -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


THREADS = """
import threading
def work():
    with perf.batch(9, total_items=1): pass
for _ in range(4):
    t = threading.Thread(target=work); t.start(); t.join()
"""
CLOSE = "\nperf.pop_range(); perf.finalize()\n"
COUNTS = {"ranges": 7, "batches": 2, "items": 8, "deleted_ranges": 1, "threads": 1}


@pytest.mark.parametrize(
    ("code", "exit_code", "ended", "exception", "recorder"),
    [
        (CLOSE, 0, "finalized", None, COUNTS | {"finalized": True}),
        ("", 0, "exit", None, COUNTS | {"open_ranges": ["pipeline"]}),
        ("sys.exit(3)", 3, "exit", None, COUNTS | {"open_ranges": ["pipeline"]}),
        ("raise KeyError('password=planted')", 1, "exception", "KeyError", COUNTS | {"open_ranges": ["pipeline"]}),
        (CLOSE + "raise KeyboardInterrupt", -2, "exception", "KeyboardInterrupt", COUNTS | {"finalized": True}),
        (
            "import signal; os.kill(os.getpid(), signal.SIGKILL)", -9, "running", None,
            {"ranges": 0, "batches": 0, "items": 0, "deleted_ranges": 0, "threads": 1},
        ),
        (
            THREADS + CLOSE, 0, "finalized", None,
            {"ranges": 11, "batches": 6, "items": 12, "deleted_ranges": 1, "threads": 5, "finalized": True},
        ),
    ],
)  # fmt: skip
def test_however_a_process_ends(
    tmp_path: Path, code: str, exit_code: int, ended: str, exception: str | None, recorder: dict[str, Any]
) -> None:
    done = run(PIPELINE + code, tmp_path, expect=exit_code)
    content = journal(tmp_path)
    assert files(tmp_path) == ["recorder.json"]
    assert (content["schema_version"], content["ended"], content["exception"]) == (1, ended, exception)
    assert content["recorders"] == [
        {"name": "rec", "domain": "perfharness", "args": {"batch_size": 4}, "finalized": False, "open_ranges": []}
        | recorder
    ]
    assert (content["python_version"], content["listening"]) == (sys.version.split()[0], False)
    assert content["nvtx_version"].count(".") == 2
    assert "planted" not in json.dumps(content)
    assert exception is None or f"{exception}" in done.stderr.splitlines()[-1], "the traceback is printed as always"


def test_the_hook_for_exceptions_that_was_there_before_is_called(tmp_path: Path) -> None:
    done = run("import sys; sys.excepthook = lambda *_: print('theirs')\n" + PIPELINE + "1 / 0", tmp_path, expect=1)
    assert (done.stdout, journal(tmp_path)["exception"]) == ("theirs\n", "ZeroDivisionError")


def test_several_recorders_and_names_that_are_no_utf8(tmp_path: Path) -> None:
    code = PIPELINE + "name = os.fsdecode(b'r\\xe9')\nPerfRecorder(name, {'a': name}, domain='mine').finalize()"
    run(code, tmp_path)
    content = journal(tmp_path)
    assert [(r["name"], r["domain"], r["finalized"]) for r in content["recorders"]] == [
        ("rec", "perfharness", False),
        ("r\\udce9", "mine", True),
    ]
    assert content["ended"] == "exit"
    json.dumps(content, ensure_ascii=False).encode()


def test_forked_child_leaves_the_parents_file_alone(tmp_path: Path) -> None:
    code = PIPELINE + (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with perf.batch(100, total_items=50): pass\n"
        "    perf.finalize()\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "quiet = os.fork()\n"
        "if quiet == 0:\n"
        "    sys.exit(0)\n"
        "os.waitpid(quiet, 0)\n"
        "perf.pop_range(); perf.finalize(); print(child)"
    )
    child = run(code, tmp_path).stdout.strip()
    assert files(tmp_path) == ["recorder.json", f"recorder_{child}.json"]
    assert journal(tmp_path)["recorders"][0]["items"] == 8
    assert journal(tmp_path)["ended"] == "finalized"
    (of_child,) = journal(tmp_path, f"recorder_{child}.json")["recorders"]
    # What it inherited is the parent's to tell, and the range around the fork the parent's to close.
    assert (of_child["ranges"], of_child["batches"], of_child["items"]) == (1, 1, 50)
    assert of_child["open_ranges"] == []


def test_forked_child_that_closes_a_batch_of_its_parent_does_not_count_it(tmp_path: Path) -> None:
    """Of the range, and of the batch with its items, nothing is in the child's part of the trace."""
    code = PIPELINE + (
        "with perf.range('around'), perf.batch(100, total_items=50):\n"
        "    with perf.batch(0, total_items=3, message='before'): pass\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        with perf.batch(0, total_items=7, message='inner'): pass\n"
        "if child == 0: sys.exit(0)\n"
        "os.waitpid(child, 0); perf.pop_range(); perf.finalize(); print(child)"
    )
    child = run(code, tmp_path).stdout.strip()
    (parent,), (of_child,) = (
        journal(tmp_path, name)["recorders"] for name in ("recorder.json", f"recorder_{child}.json")
    )
    assert (of_child["ranges"], of_child["batches"], of_child["items"]) == (1, 1, 7)
    assert parent["items"] == 8 + 3 + 50


@pytest.mark.parametrize("end", ["os._exit(0)", "import signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_forked_child_that_calls_no_exit_function(tmp_path: Path, end: str) -> None:
    """By os._exit it still tells its counts; killed, those that it wrote with its last range but one."""
    code = PIPELINE + (
        "from types import SimpleNamespace\n"
        "from perfharness.recorder import journal\n"
        "now_s = 100.0\n"
        "journal.time = SimpleNamespace(monotonic=lambda: now_s)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with perf.range('first'): pass\n"
        "    now_s = 101.1\n"
        "    with perf.range('second'): pass\n"
        "    with perf.range('third'): pass\n"
        f"    {end}\n"
        "os.waitpid(child, 0)\n"
        "perf.pop_range(); perf.finalize(); print(child)"
    )
    child = run(code, tmp_path).stdout.strip()
    of_child = journal(tmp_path, f"recorder_{child}.json")
    was_killed = "kill" in end
    assert of_child["recorders"][0]["ranges"] == (1 if was_killed else 3)
    assert of_child["ended"] == ("running" if was_killed else "exit")


def test_locks_that_another_thread_holds_at_a_fork_are_free_in_the_child(tmp_path: Path) -> None:
    code = PIPELINE + (
        "import signal, threading, time\n"
        "from perfharness.recorder import capture, core, nvtx_channels\n"
        "part = capture.Capture(0, 1, lambda: lambda: None)\n"
        "held = threading.Event()\n"
        "def hold():\n"
        "    with core._naming, core._claiming, nvtx_channels._lock, perf._core._lock, part._lock:\n"
        "        held.set(); time.sleep(60)\n"
        "threading.Thread(target=hold, daemon=True).start(); held.wait()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(20)\n"
        "    with PerfRecorder('new', domain='another').range('a'), perf.range('b', domain='new'): pass\n"
        "    worker = threading.Thread(target=lambda: perf.push_range('c')); worker.start(); worker.join()\n"
        "    part.join(); nvtx_channels._channel(*[lambda *args: None] * 6).attributes('d', 0, '')\n"
        "    os._exit(7)\n"
        "print(child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True); os._exit(0)"
    )
    child, status = run(code, tmp_path).stdout.split()
    assert status == "7"
    assert [one["ranges"] for one in journal(tmp_path, f"recorder_{child}.json")["recorders"]] == [2, 1]


def test_many_open_ranges_are_not_all_named(tmp_path: Path) -> None:
    run(PIPELINE + "for i in range(5000): perf.push_range(f'r{i:020}')", tmp_path)
    assert journal(tmp_path)["recorders"][0]["ranges"] == 5_007
    assert (tmp_path / "recorder.json").stat().st_size < 50_000


@pytest.mark.parametrize("parent", [PIPELINE, "import sys\n"])
def test_processes_of_one_launch_have_a_file_each(tmp_path: Path, parent: str) -> None:
    inner = "from perfharness import PerfRecorder; PerfRecorder('inner').finalize()"
    start = f"subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    code = f"{parent}import subprocess\nfor _ in range(2): {start}"
    run(code, tmp_path)
    assert len(files(tmp_path)) == 2 + (parent is PIPELINE)
    assert [r["name"] for r in journal(tmp_path)["recorders"]] == ["rec" if parent is PIPELINE else "inner"]


@pytest.mark.parametrize("content", ["an ended process", "", "{", "[]", '{"pid": "x"}'])
def test_file_of_an_older_run_or_one_that_cannot_be_read_is_replaced(tmp_path: Path, content: str) -> None:
    if content == "an ended process":
        ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
        content = json.dumps({"pid": int(ended.stdout), "parent_pid": 1, "recorders": ["old"]})
    (tmp_path / "recorder.json").write_text(content, encoding="utf-8")
    run("import os; os.umask(0o077)\n" + PIPELINE, tmp_path)
    assert files(tmp_path) == ["recorder.json"]
    assert journal(tmp_path)["recorders"][0]["name"] == "rec"
    assert (tmp_path / "recorder.json").stat().st_mode & 0o777 == 0o600, "the umask is respected"


def test_folder_that_cannot_be_written_to_is_said_once_and_the_pipeline_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = run(PIPELINE + "perf.pop_range(); perf.finalize(); print('done')", tmp_path / "file")
    assert done.stdout == "done\n"
    assert done.stderr.count("recorder.json") == 1


# ---- arguments ----


class Colour(Enum):
    RED = 1


class Angry:
    def __repr__(self) -> str:
        raise ValueError


def test_arguments_become_json() -> None:
    values = {
        "path": Path("/a"),
        "nothing": None,
        "number": 1.5,
        "nan": float("nan"),
        "infinite": float("-inf"),
        "colour": Colour.RED,
        "nested": {"list": [1, (2, "x")], 3: True},
        "angry": Angry(),
        "long": range(10),
        "bytes": b"x" * 5000,
    }
    result = arguments_to_json(SimpleNamespace(**values))
    long = result.pop("bytes")
    assert result == {
        "path": "PosixPath('/a')",
        "nothing": None,
        "number": 1.5,
        "nan": "nan",
        "infinite": "-inf",
        "colour": "<Colour.RED: 1>",
        "nested": {"list": [1, [2, "x"]], "3": True},
        "angry": "<Angry, whose repr raises ValueError>",
        "long": "range(0, 10)",
    }
    assert len(long) == 1001
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (None, {}),
        ({}, {}),
        (SimpleNamespace(), {}),
        ([1, 2], {"args": [1, 2]}),
        ({"token": None}, {"token": None}),
        ({"keyframes": 5, "monkey": 5, "max_tokens": 5, "tokenizer": 5, "secretary": 5, "hockey": 5}, None),
    ],
)
def test_arguments_of_any_kind(args: object, expected: object) -> None:
    assert arguments_to_json(args) == (args if expected is None else expected)


def test_arguments_that_hold_themselves() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    json.dumps(arguments_to_json(loop))


@pytest.mark.parametrize(
    "name", ["password", "db_password", "API-KEY", "apiKey", "hf_token", "clientSecret", "KEY", "HFToken", "api_key_2"]
)
def test_secrets_are_masked(name: str) -> None:
    assert arguments_to_json({name: "hunter2", "deeper": [{name: {"x": 1}}]}) == {
        name: "***",
        "deeper": [{name: "***"}],
    }


def test_secrets_inside_values_are_masked() -> None:
    class Client:
        def __repr__(self) -> str:
            return "Client(password='SECRET')"

    made = arguments_to_json(
        SimpleNamespace(
            url="https://me:SECRET@host/", bearer="SECRET", db_dsn="SECRET", client=Client(), count=3,
            config={"headers": {"Authorization": "SECRET", "X": "Bearer SECRET"}, "token": "SECRET"},
        )
    )  # fmt: skip
    assert "SECRET" not in json.dumps(made)
    assert (made["count"], set(made["config"])) == (3, {"headers", "token"})
