"""The embedded tracer on a real GPU: what it records beside what nsys records of the same program."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.boot import FOLLOW
from perfharness.model import nsys_schema as schema
from perfharness.model.trace import GpuOperationKind
from perfharness.trace import open_trace
from perfharness.tracer.output import complete_traces
from tests.integration import launches

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
THREADS, BATCHES, REPLAYS = 2, 5, 4

PIPELINE = f"""
import threading
import nvtx, torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10))
net = net.cuda().eval()
items = torch.randn(4, 3, 32, 32)
with torch.no_grad():
    net(items.cuda())
matrix = torch.ones(64, 64, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    (matrix @ matrix).relu().sum()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    (matrix @ matrix).relu().sum()
torch.cuda.synchronize()

def work(index):
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        for batch in range({BATCHES}):
            nvtx.push_range(f"thread_{{index}}", domain="pipeline", payload=batch)
            with nvtx.annotate("upload", domain="pipeline"):
                on_device = items.to("cuda", non_blocking=True) * 2
            with nvtx.annotate("infer", domain="pipeline"):
                answer = net(on_device)
                torch.zeros(100_000, device="cuda", dtype=torch.uint8)
            with nvtx.annotate("download", domain="pipeline"):
                answer.cpu()
            nvtx.pop_range(domain="pipeline")

threads = [threading.Thread(target=work, args=(index,)) for index in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for replay in range({REPLAYS}):
    with nvtx.annotate("replay"):
        graph.replay()
torch.cuda.synchronize()
torch.cuda.nvtx.range_push("from C")
(matrix + 1).sum().item()
torch.cuda.nvtx.range_pop()
weight = torch.randn(32, 32, device="cuda", requires_grad=True)
with nvtx.annotate("train"):
    (weight @ weight).sum().backward()
    torch.cuda.synchronize()
"""
"""Two threads with a stream each, a graph, NVTX from C, and autograd, which launches from a thread of its own."""


def environment(folder: Path, *, traced: bool) -> dict[str, str]:
    kept = {name: value for name, value in launches.environment().items() if not name.startswith("PERFHARNESS_")}
    if not traced:
        return kept
    path = os.pathsep.join([str(FOLLOW), kept["PYTHONPATH"]])
    given = {"PERFHARNESS_OUTPUT_DIR": str(folder), "PERFHARNESS_TRACER": "embedded"}
    return {**kept, **given, "PYTHONPATH": path}


def run(folder: Path, source: str, *prefix: str, traced: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, under the embedded tracer if `traced`."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.py"
    script.write_text(source)
    command = [*prefix, sys.executable, str(script)]
    env = environment(folder, traced=traced)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)
    complete_traces(folder)
    return done


def nsys_program() -> str:
    found = os.environ.get("PERFHARNESS_TEST_NSYS") or shutil.which("nsys")
    if not found:
        pytest.skip("there is no nsys (PERFHARNESS_TEST_NSYS, PATH) to compare with")
    return found


def profile(folder: Path) -> list[str]:
    options = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true", "--export=sqlite"]
    return [nsys_program(), "profile", *options, f"--output={folder / 'nsys'}"]


def meta(trace: Path) -> dict[str, str]:
    with closing(sqlite3.connect(trace)) as connection:
        return dict(connection.execute(f"SELECT name, value FROM {schema.TABLE_PERFHARNESS}"))


def query(trace: Path, text: str) -> list[Any]:
    with closing(sqlite3.connect(trace)) as connection:
        return connection.execute(text).fetchall()


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedded")
    process = run(folder, PIPELINE)
    assert process.returncode == 0, process.stderr
    return folder / "trace.sqlite"


@pytest.fixture(scope="module")
def nsys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nsys")
    process = run(folder, PIPELINE, *profile(folder), traced=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return folder / "nsys.sqlite"


def test_gpu_work_was_traced_and_none_was_lost(embedded: Path) -> None:
    found = meta(embedded)
    assert found[schema.META_CUDA_TRACED] == "yes", found
    assert found[schema.META_CUDA_USED] == "yes"
    assert found[schema.META_DROPPED_RECORDS] == "0"
    assert schema.META_DIAGNOSTIC not in found


KERNELS_BY_NAME = (
    f"SELECT s.value, count(*) FROM {schema.TABLE_KERNEL} JOIN {schema.TABLE_STRINGS} s ON s.id = shortName "
    "GROUP BY 1 ORDER BY 1"
)
COPIES_BY_KIND = (
    f"SELECT copyKind, srcKind, dstKind, count(*), sum(bytes) FROM {schema.TABLE_MEMCPY} GROUP BY 1, 2, 3 ORDER BY 1, 2"
)
MEMSETS = f"SELECT value, memKind, count(*), sum(bytes) FROM {schema.TABLE_MEMSET} GROUP BY 1, 2"
GRAPHS = f"SELECT count(*) FROM {schema.TABLE_GRAPH}"
LAUNCHING_CALLS = (
    f"SELECT s.value, a.eventClass, count(*) FROM {schema.TABLE_API} a JOIN {schema.TABLE_STRINGS} s ON s.id = nameId "
    f"WHERE correlationId IN (SELECT correlationId FROM {schema.TABLE_KERNEL} UNION SELECT correlationId FROM "
    f"{schema.TABLE_MEMCPY} UNION SELECT correlationId FROM {schema.TABLE_MEMSET} UNION SELECT correlationId FROM "
    f"{schema.TABLE_GRAPH}) GROUP BY 1, 2 ORDER BY 1"
)


@pytest.mark.parametrize(
    "text",
    [KERNELS_BY_NAME, COPIES_BY_KIND, MEMSETS, GRAPHS, LAUNCHING_CALLS],
    ids=["kernels", "copies", "memsets", "graphs", "calls"],
)
def test_the_same_work_as_in_nsys_s_trace(embedded: Path, nsys: Path, text: str) -> None:
    assert query(embedded, text) == query(nsys, text)


def operations_by_range(path: Path) -> dict[tuple[str, str], list[int]]:
    """For each (range name, kind of operation): how many operations each range of that name started, sorted."""
    trace = open_trace(path)
    table = Analysis(trace).table
    found: dict[tuple[str, str], list[int]] = {}
    for row in range(len(table.ranges)):
        name = trace.names[table.ranges.name[row]]
        found.setdefault((name, "all"), []).append(int(table.projection.operation_count[row]))
    return {key: sorted(counts) for key, counts in found.items()}


def test_every_range_starts_the_same_work_as_in_nsys_s_trace(embedded: Path, nsys: Path) -> None:
    ours = operations_by_range(embedded)
    assert ours == operations_by_range(nsys)
    assert len(ours["upload", "all"]) == THREADS * BATCHES
    assert ours["replay", "all"] == [1] * REPLAYS
    assert min(ours["from C", "all"]) > 0


def test_what_autograd_launches_on_its_own_thread_is_not_the_range_s(embedded: Path) -> None:
    threads = query(embedded, f"SELECT count(DISTINCT globalTid) FROM {schema.TABLE_API}")
    assert threads[0][0] == 1 + THREADS + 1


def test_clocks_agree(embedded: Path) -> None:
    """No operation begins before the call that started it; a download is over before its range ends."""
    early = query(
        embedded,
        f"SELECT k.start - a.start FROM {schema.TABLE_KERNEL} k JOIN {schema.TABLE_API} a USING (correlationId) "
        "WHERE k.start < a.start",
    )
    assert early == []
    trace = open_trace(embedded)
    table = Analysis(trace).table
    rows = [r for r in range(len(table.ranges)) if trace.names[table.ranges.name[r]] == "download"]
    assert rows
    for row in rows:
        assert table.ranges.start_ns[row] <= table.projection.start_ns[row]
        assert table.projection.end_ns[row] <= table.ranges.end_ns[row]
    assert GpuOperationKind.MEMCPY in set(trace.operations.kind.tolist())


def test_nsys_stats_reads_it(embedded: Path) -> None:
    process = subprocess.run(
        [nsys_program(), "stats", "-q", "-r", "nvtx_gpu_proj_trace,cuda_gpu_kern_sum", "--format", "csv", embedded],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "pipeline:upload" in process.stdout


def test_many_launches_and_none_lost(tmp_path: Path) -> None:
    launches = 120_000
    source = f"""
import torch
x = torch.zeros(16, device="cuda")
for _ in range({launches}):
    x.add_(1)
torch.cuda.synchronize()
print(int(x[0]))
"""
    process = run(tmp_path, source)
    assert process.stdout == f"{launches}\n", process.stderr
    trace = tmp_path / "trace.sqlite"
    assert meta(trace)[schema.META_DROPPED_RECORDS] == "0"
    counts = query(trace, f"SELECT count(*), count(DISTINCT correlationId) FROM {schema.TABLE_KERNEL}")
    assert counts[0][0] == counts[0][1] >= launches


def test_calls_are_recorded_where_page_locked_memory_is_the_first_use_of_cuda(tmp_path: Path) -> None:
    """C++ initialises CUDA for it, so CUPTI is started afterwards."""
    process = run(tmp_path, "import torch; x = torch.ones(64, 64).pin_memory(); print(int((x.cuda() + 1).sum()))")
    assert process.stdout == "8192\n", process.stderr
    without = f"SELECT count(*) FROM {schema.TABLE_KERNEL} WHERE correlationId NOT IN (SELECT correlationId FROM "
    assert query(tmp_path / "trace.sqlite", f"{without}{schema.TABLE_API})") == [(0,)]
    assert query(tmp_path / "trace.sqlite", f"SELECT count(*) FROM {schema.TABLE_KERNEL}")[0][0] >= 2


def test_stands_back_under_nsys(tmp_path: Path) -> None:
    process = run(tmp_path, "import torch; print(int(torch.ones(3, device='cuda').sum()))", *profile(tmp_path))
    assert "3" in process.stdout
    found = meta(tmp_path / "trace.sqlite")
    assert found[schema.META_CUDA_TRACED] == "no"
    assert found[schema.META_CUDA_USED] == "yes"
    assert found[schema.META_CUDA_UNTRACED_REASON]
    assert found[schema.META_DIAGNOSTIC]


def test_torch_profiler_in_the_script_takes_nothing_away(tmp_path: Path) -> None:
    """PyTorch's profiler finds the one place of a subscriber taken and records no GPU work; the trace is whole."""
    source = """
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.ones(64, 64, device="cuda")
for _ in range(10):
    x.add_(1)
with profile(activities=[ProfilerActivity.CUDA]):
    for _ in range(10):
        x.add_(1)
    torch.cuda.synchronize()
for _ in range(10):
    x.add_(1)
torch.cuda.synchronize()
"""
    process = run(tmp_path, source)
    assert process.returncode == 0, process.stderr
    found = meta(tmp_path / "trace.sqlite")
    assert found[schema.META_CUDA_TRACED] == "yes"
    assert query(tmp_path / "trace.sqlite", f"SELECT count(*) FROM {schema.TABLE_KERNEL}")[0][0] == 31


def test_records_that_someone_else_takes_are_missed(tmp_path: Path) -> None:
    """Another user of the same CUPTI registers its own buffers in the middle of the run: the trace must say no."""
    source = """
import ctypes, torch
x = torch.ones(64, 64, device="cuda")
x.add_(1)
torch.cuda.synchronize()
from perfharness.tracer import cupti
path = next(cupti.find_libraries(cupti.driver_cuda_version(cupti.driver_library()) // 1000))
library = ctypes.CDLL(str(path))
memory = ctypes.create_string_buffer(1 << 20)
Request = ctypes.CFUNCTYPE(None, *[ctypes.POINTER(ctypes.c_size_t)] * 3)
@Request
def request(buffer, size, count):
    buffer[0], size[0], count[0] = ctypes.addressof(memory), len(memory), 0
Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
complete = Complete(lambda *_: None)
library.cuptiActivityFlushAll(1)
library.cuptiActivityRegisterCallbacks(request, complete)
x.add_(1)
torch.cuda.synchronize()
import atexit
atexit.register(library.cuptiActivityFlushAll, 1)
"""
    run(tmp_path, source)
    found = meta(tmp_path / "trace.sqlite")
    assert found[schema.META_CUDA_TRACED] == "no"
    assert found[schema.META_CUDA_UNTRACED_REASON]


def test_forked_workers_record_what_they_do_unless_cuda_was_used_before(tmp_path: Path) -> None:
    """The tracer must not initialise CUDA before the script does: after that no forked child could use it."""
    source = """
import os, sys
import nvtx, torch
def work(count):
    with nvtx.annotate("work"):
        x = torch.zeros(5, device="cuda")
        for _ in range(count):
            x.add_(1)
        print(int(x[0]), flush=True)
for count in (2, 3):
    child = os.fork()
    if child == 0:
        work(count)
        os._exit(0)
    os.waitpid(child, 0)
work(4)
"""
    process = run(tmp_path, source)
    assert process.stdout == "2\n3\n4\n", process.stderr
    kernels = "SELECT count(*) FROM " + schema.TABLE_KERNEL
    traces = sorted(tmp_path.glob("trace*.sqlite"))  # that of the first process is trace.sqlite
    assert [meta(trace)[schema.META_CUDA_TRACED] for trace in traces] == ["yes"] * 3
    first, *others = [query(trace, kernels)[0][0] for trace in traces]
    assert others == [first - 2, first - 1]
    assert len({tuple(operations_by_range(trace)["work", "all"]) for trace in traces}) == 3


def test_a_process_that_is_terminated_says_that_gpu_work_is_missing(tmp_path: Path) -> None:
    source = """
import os, signal, nvtx, torch
with nvtx.annotate("work"):
    x = torch.zeros(1024, 1024, device="cuda")
    x.add_(1)
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert run(tmp_path, source).returncode == -signal.SIGTERM
    found = meta(tmp_path / "trace.sqlite")
    assert (found[schema.META_CUDA_TRACED], found[schema.META_CUDA_USED]) == ("no", "yes")
    assert [row[0] for row in operations_by_range(tmp_path / "trace.sqlite")] == ["work"]
