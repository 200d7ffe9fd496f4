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

ROOT = Path(__file__).parents[2]

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


def test_finalized(tmp_path: Path) -> None:
    run(PIPELINE + "perf.pop_range(); perf.finalize()", tmp_path)
    content = journal(tmp_path)
    assert files(tmp_path) == ["recorder.json"]
    assert content["recorders"] == [
        {
            "name": "rec",
            "domain": "perfharness",
            "args": {"batch_size": 4},
            "ranges": 7,
            "batches": 2,
            "items": 8,
            "deleted_ranges": 1,
            "threads": 1,
            "finalized": True,
            "open_ranges": [],
        }
    ]
    assert (content["schema_version"], content["ended"], content["exception"]) == (1, "finalized", None)
    assert content["python_version"] == sys.version.split()[0]
    assert content["nvtx_version"].count(".") == 2
    assert content["listening"] is False
    assert content["pid"] > 1


def test_never_finalized(tmp_path: Path) -> None:
    run(PIPELINE, tmp_path)
    content = journal(tmp_path)
    (recorder,) = content["recorders"]
    assert content["ended"] == "exit"
    assert (recorder["finalized"], recorder["open_ranges"]) == (False, ["pipeline"])
    assert (recorder["ranges"], recorder["batches"], recorder["items"]) == (7, 2, 8)


def test_exception_and_the_hook_that_was_there_before(tmp_path: Path) -> None:
    code = "import sys; sys.excepthook = lambda *_: print('theirs')\n" + PIPELINE + "raise KeyError('password=1234')"
    done = run(code, tmp_path, expect=1)
    content = journal(tmp_path)
    assert done.stdout == "theirs\n"
    assert (content["ended"], content["exception"]) == ("exception", "KeyError")
    assert content["recorders"][0]["batches"] == 2
    assert "1234" not in json.dumps(content)


def test_exception_prints_its_traceback_as_always(tmp_path: Path) -> None:
    assert "ValueError: mine" in run(PIPELINE + "raise ValueError('mine')", tmp_path, expect=1).stderr


def test_exception_after_finalize(tmp_path: Path) -> None:
    run(PIPELINE + "perf.pop_range(); perf.finalize(); raise KeyboardInterrupt", tmp_path, expect=-2)
    content = journal(tmp_path)
    assert (content["ended"], content["exception"]) == ("exception", "KeyboardInterrupt")
    assert content["recorders"][0]["finalized"] is True


def test_sys_exit(tmp_path: Path) -> None:
    run(PIPELINE + "sys.exit(3)", tmp_path, expect=3)
    assert journal(tmp_path)["ended"] == "exit"
    assert journal(tmp_path)["recorders"][0]["batches"] == 2


def test_killed_leaves_what_was_written_first(tmp_path: Path) -> None:
    run(PIPELINE + "import signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path, expect=-9)
    content = journal(tmp_path)
    assert content["ended"] == "running"
    assert content["recorders"][0]["finalized"] is False


def test_several_recorders(tmp_path: Path) -> None:
    code = PIPELINE + "other = PerfRecorder('other', domain='mine'); other.finalize(); perf.pop_range()"
    run(code, tmp_path)
    content = journal(tmp_path)
    assert [(r["name"], r["domain"], r["finalized"]) for r in content["recorders"]] == [
        ("rec", "perfharness", False),
        ("other", "mine", True),
    ]
    assert content["ended"] == "exit"


def test_threads_are_counted_together(tmp_path: Path) -> None:
    code = PIPELINE + (
        "import threading\n"
        "def work():\n"
        "    with perf.batch(9, total_items=1): pass\n"
        "for _ in range(4):\n"
        "    t = threading.Thread(target=work); t.start(); t.join()\n"
        "perf.pop_range(); perf.finalize()"
    )
    run(code, tmp_path)
    (recorder,) = journal(tmp_path)["recorders"]
    assert (recorder["threads"], recorder["ranges"], recorder["batches"], recorder["items"]) == (5, 11, 6, 12)


def test_forked_child_leaves_the_parents_file_alone(tmp_path: Path) -> None:
    code = PIPELINE + (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with perf.batch(100, total_items=50): pass\n"
        "    sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
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
    # What it inherited is the parent's to tell; the range around the fork is open in the child too.
    assert (of_child["ranges"], of_child["batches"], of_child["items"]) == (1, 1, 50)
    assert of_child["open_ranges"] == ["pipeline"]


@pytest.mark.parametrize("end", ["os._exit(0)", "import signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_forked_child_that_calls_no_exit_function(tmp_path: Path, end: str) -> None:
    """By os._exit it still tells its counts; killed, those that it wrote with its last range but one."""
    code = PIPELINE + (
        "import time\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with perf.range('first'): pass\n"
        "    time.sleep(1.1)\n"
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


def test_two_objects_of_one_name_are_one_entry(tmp_path: Path) -> None:
    code = PIPELINE + (
        "other = PerfRecorder('rec', {'second': 2})\nwith other.range('x'): pass\nother.finalize(); perf.pop_range()\n"
    )
    run(code + "perf.finalize()", tmp_path / "all")
    run(code, tmp_path / "one")
    (recorder,) = journal(tmp_path / "all")["recorders"]
    assert (recorder["ranges"], recorder["finalized"]) == (8, True)
    assert recorder["args"] == {"batch_size": 4, "second": 2}
    assert journal(tmp_path / "one")["recorders"][0]["finalized"] is False


def test_the_file_respects_the_umask(tmp_path: Path) -> None:
    run("import os; os.umask(0o077)\n" + PIPELINE, tmp_path)
    assert (tmp_path / "recorder.json").stat().st_mode & 0o777 == 0o600


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    code = "import os\nfrom perfharness import PerfRecorder\n"
    run(code + "name = os.fsdecode(b'r\\xe9')\nPerfRecorder(name, {'a': name})", tmp_path)
    assert journal(tmp_path)["recorders"][0]["name"] == "r\\udce9"
    json.dumps(journal(tmp_path), ensure_ascii=False).encode()


def test_many_open_ranges_are_not_all_named(tmp_path: Path) -> None:
    run(PIPELINE + "for i in range(20000): perf.push_range(f'r{i}')", tmp_path)
    assert journal(tmp_path)["recorders"][0]["ranges"] == 20_007
    assert (tmp_path / "recorder.json").stat().st_size < 50_000


def test_multiprocessing_children_tell_their_own(tmp_path: Path) -> None:
    code = PIPELINE + (
        "import multiprocessing\n"
        "def work():\n"
        "    with perf.batch(100, total_items=50): pass\n"
        "child = multiprocessing.get_context('fork').Process(target=work)\n"
        "child.start(); child.join(); perf.pop_range(); perf.finalize(); print(child.pid)"
    )
    child = run(code, tmp_path).stdout.strip()
    assert files(tmp_path) == ["recorder.json", f"recorder_{child}.json"]
    assert journal(tmp_path, f"recorder_{child}.json")["recorders"][0]["items"] == 50


@pytest.mark.parametrize("times", [2, 3])
def test_processes_of_one_launch_have_a_file_each(tmp_path: Path, times: int) -> None:
    inner = "from perfharness import PerfRecorder; PerfRecorder('inner').finalize()"
    code = PIPELINE + (
        "import subprocess\n"
        f"for _ in range({times}):\n"
        f"    subprocess.run([sys.executable, '-c', {inner!r}], check=True)\n"
        "perf.pop_range(); perf.finalize()"
    )
    run(code, tmp_path)
    assert len(files(tmp_path)) == 1 + times
    assert [r["name"] for r in journal(tmp_path)["recorders"]] == ["rec"]


def test_children_one_after_the_other_without_a_recorder_in_the_parent(tmp_path: Path) -> None:
    inner = "from perfharness import PerfRecorder; PerfRecorder('inner').finalize()"
    code = f"import subprocess, sys\nfor _ in range(2): subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    run(code, tmp_path)
    assert len(files(tmp_path)) == 2


def test_file_of_an_older_run_is_replaced(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    stale = {"pid": int(ended.stdout), "parent_pid": 1, "recorders": ["old"]}
    (tmp_path / "recorder.json").write_text(json.dumps(stale), encoding="utf-8")
    run(PIPELINE, tmp_path)
    assert files(tmp_path) == ["recorder.json"]
    assert journal(tmp_path)["recorders"][0]["name"] == "rec"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}'])
def test_file_that_cannot_be_read_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "recorder.json").write_text(content, encoding="utf-8")
    run(PIPELINE, tmp_path)
    assert journal(tmp_path)["recorders"][0]["name"] == "rec"


def test_folder_is_made(tmp_path: Path) -> None:
    run(PIPELINE, tmp_path / "a" / "b")
    assert files(tmp_path / "a" / "b") == ["recorder.json"]


def test_folder_that_cannot_be_written_to_is_said_once_and_the_pipeline_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = run(PIPELINE + "perf.pop_range(); perf.finalize(); print('done')", tmp_path / "file")
    assert done.stdout == "done\n"
    assert done.stderr.count("recorder.json cannot be written") == 1


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


def test_arguments_that_hold_themselves() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    json.dumps(arguments_to_json(loop))


@pytest.mark.parametrize("args", [None, {}, SimpleNamespace()])
def test_no_arguments(args: object) -> None:
    assert arguments_to_json(args) == {}


def test_arguments_of_another_kind() -> None:
    assert arguments_to_json([1, 2]) == {"args": [1, 2]}


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


@pytest.mark.parametrize("name", ["keyframes", "monkey", "max_tokens", "tokenizer", "secretary", "keypoints", "hockey"])
def test_words_that_only_look_like_secrets(name: str) -> None:
    assert arguments_to_json({name: 5}) == {name: 5}


def test_secret_that_was_not_given() -> None:
    assert arguments_to_json({"token": None}) == {"token": None}
