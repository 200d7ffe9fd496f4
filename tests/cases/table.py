"""The rows: what to run, what is right of it, and what is still wrong, by the letter of its kind.

A number is what the program plants, never what came out. A busy machine lengthens times, so that they have wide
tolerances; counts, names, causes and exit codes are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.cases.checks import (
    Check,
    accounted,
    at_most,
    batches,
    both,
    cause,
    either,
    every,
    exits,
    finds,
    first,
    fits,
    has_cause,
    lasts,
    line_takes,
    never,
    notes,
    number,
    outside,
    peak_memory,
    range_exceeds_span,
    rate_matches,
    reads,
    saves_share,
    says,
    silent,
    throughput,
    throughput_as_printed,
    times_fit,
)

KINDS = {
    "F1": "the first advice about a stage has another cause than its verdict",
    "F2": "ranges are dropped without a count: ends on another thread, other domains",
    "F3": "means over the batches that have a stage are added up and set against all batches",
    "F4": "cpu-bound is said of time about which nothing is known",
    "F5": "a receive whose peer is a thread of the same process is called a lock",
    "F6": "a fast beginning is called a slow one, and drift is not reported by launch",
    "F7": "a wait that ends by its own timeout is called a slow data loader",
    "F8": "batches deleted by an exception are counted nowhere",
    "F9": "a profiler that is on in the process is not noticed",
    "F10": "NVTX_DISABLE is not looked at, and nvtx is called too new",
    "F11": "the launch's own doing (no stdin, nsys in nsys) is called the script's",
    "F12": "the expected rate of Offline is guessed too high",
    "F13": "inside a batch of another recorder is called outside of batches",
    "F14": "a row for each name and names of any length in the tables",
    "F15": "CPU contention between processes of one launch is not named",
    "F16": "a coroutine that blocks is counted as lateness of the generator",
    "A": "loops, items and parts of a run are guessed",
    "B": "nested batches",
    "C": "a batch or range cut by the end of the process",
    "D": "ranges of others inside the batches",
    "E": "the last step of a generator",
    "F": "a mean of means",
    "G": "peak memory between two samples",
    "H": "perfharness's own readings inside stages",
    "I": "exec",
    "J": "one name in two processes",
    "K": "shares and lines of causes",
    "G04": "a stage with most of the GPU work and a short host part",
    "G11": "GPU memory that grows",
    "G16": "work that the two passes did in different proportions",
    "unclear": "not settled",
}
"""Letters of the reports (F1 to F16, and by GPU program) and of the wrong numbers (A to K)."""

EMBEDDED = ("embedded",)
NSYS = ("nsys",)
BOTH = ("embedded", "nsys")


@dataclass(frozen=True)
class Case:
    """A command and those that read its results; `{out}` is its folder."""

    name: str
    run: str
    right: tuple[Check, ...] = ()
    wrong: tuple[tuple[str, Check], ...] = ()
    """By kind: expected to fail until it is mended."""
    exit: int | None = 0
    """None: what is wrong includes it."""
    then: tuple[str, ...] = ()
    tracers: tuple[str, ...] = EMBEDDED
    folder: str = "cpu"
    files: tuple[tuple[str, str], ...] = ()
    """Written beside the programs."""
    environ: tuple[tuple[str, str], ...] = ()
    site: str = ""
    """A folder of the user on PYTHONPATH."""
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    needs_nsys: bool = False
    """Beside a tracer that is not nsys."""
    quick: bool = False
    """Not timed and short: part of the gate."""
    sometimes: tuple[tuple[str, Check], ...] = ()
    """What is wrong in some runs only."""


CASES = (
    Case(
        "1",
        "launch -w 1 c01_await_ranges.py",
        tracers=BOTH,
        right=(lasts("slow", 60), lasts("mid", 40), lasts("quick", 20), batches(12)),
        wrong=(("F1", never("quick", "cpu")),),
    ),
    Case(
        "2",
        "launch -w 1 c01b_await_recorder.py",
        tracers=BOTH,
        right=(outside("slow", 12, 60), outside("mid", 12, 40), outside("quick", 12, 20), batches(12)),
    ),
    Case(
        "3",
        "launch c02_start_end.py",
        tracers=BOTH,
        right=(
            number("mean_all_batches/nvtx/request/count", 12),
            number("mean_all_batches/nvtx/request/cpu_time", 240, 0.3),
        ),
        wrong=(("F2", accounted("upload", 360)),),
    ),
    Case(
        "4",
        "launch c03_never_popped.py",
        quick=True,
        exit=1,
        right=(says("RecorderError.*'filter'.*'batch_5'"), finds("range-never-closed"), batches(6)),
    ),
    Case(
        "5",
        "launch -w 1 c03b_never_popped_plain.py",
        exit=3,
        right=(finds("range-never-closed"), lasts("nvtx/batch/decode", 5)),
        wrong=(("F4", never("decode", "cpu")), ("F4", silent("Run more than"))),
    ),
    Case(
        "6",
        "launch -w 1 c04_names_with_ids.py",
        right=(batches(60), lasts("batch", 8)),
        wrong=(("F3", times_fit), ("F14", finds("names-differ-by-batch")), ("F14", fits(200, 60))),
    ),
    Case("7", "launch c05_library_only.py", quick=True, right=(finds("no-batches"), throughput(None))),
    Case(
        "8",
        "launch -w 1 c06_two_epochs.py",
        right=(batches(20), lasts("batch", 15, statistic="mean"), lasts("infer", 15, statistic="mean")),
    ),
    Case(
        "9",
        "launch -w 0 c07_short_last_batch.py",
        right=(
            batches(10),
            throughput(1000),
            number("mean_data/embed/pipeline/batch/cpu_time_per_item", 1, 0.25),
            number("stats_minus_warmup/embed/pipeline/batch/cpu_time/p99", None),
        ),
    ),
    Case("10", "launch c08_closes_fds.py", quick=True, right=((batches(20),))),
    Case(
        "10n",
        "launch --timeout 60 c08_closes_fds.py",
        exit=None,
        tracers=NSYS,
        sometimes=(("unclear", either(batches(20), says("--tracer embedded"))),),
    ),
    Case("11", "launch c09_hook.py", site="c09_sitecustomize", quick=True, right=((batches(20),))),
    Case(
        "12",
        "launch --explain c10b_nodelay_two_processes.py 40",
        right=(lasts("remote_infer", 42, 0.2), cause("remote_infer", "network", line=42)),
    ),
    Case(
        "12-mended",
        "launch --explain c10b_nodelay_two_processes.py 40 mended",
        right=(at_most("remote_infer", 2), never("remote_infer", "network")),
    ),
    Case(
        "12b",
        "launch --explain c10_nodelay.py 40",
        right=((lasts("remote_infer", 42, 0.2),)),
        wrong=(("F5", cause("remote_infer", "network", line=43)),),
    ),
    Case(
        "13",
        "stress c11_async_blocking.py:blocking --rate 60 --concurrency 8 --duration 6s --format json",
        modules=("aiohttp",),
        right=(reads("phases/0/achieved_rate", 34, 0.18), says("rate-not-achieved")),
        wrong=(("F16", silent("generator-limited")),),
    ),
    Case(
        "13-mended",
        "stress c11_async_blocking.py:mended --rate 60 --concurrency 8 --duration 6s --format json",
        modules=("aiohttp",),
        right=(reads("phases/0/achieved_rate", 60, 0.1), silent("rate-not-achieved")),
    ),
    Case(
        "14",
        "launch --explain c12_regex.py 100",
        then=("slowest {out} --format json",),
        right=(
            batches(100),
            cause("tokenize", "cpu", line=16),
            lasts("score", 4),
            reads("loops/0/requests/0/parts/0/stage", "tokenize"),
        ),
    ),
    Case(
        "15",
        "launch --explain c13_growing.py 60",
        then=("diagnose {out}",),
        right=((batches(60),)),
        wrong=(("F6", finds("batches-drift", "never-steady")),),
        sometimes=(("F6", silent("slow beginning", run=1)),),
    ),
    Case(
        "16",
        "launch --explain c14_session_each_time.py 40",
        modules=("onnxruntime", "onnx"),
        right=(cause("predict", "recompiles", line=30), first("predict", "recompiles"), says("once")),
    ),
    Case(
        "16-mended",
        "launch --explain c14_session_each_time.py 40 mended",
        modules=("onnxruntime", "onnx"),
        right=((cause("predict", "cpu", line=41),)),
    ),
    Case(
        "17",
        "launch --explain c15_batcher.py 40",
        right=(lasts("collect", 20), at_most("infer", 30)),
        wrong=(("F7", never("collect", "loader")),),
    ),
    Case("18", "launch --explain c16_json.py 40", right=(cause("respond", "cpu", line=17), says("json"))),
    Case(
        "19",
        "launch --explain c17_mmap_cold.py 24",
        right=(cause("load_expert", "file"), has_cause("load_expert", "file", 28)),
    ),
    Case("20", "launch --explain c18_denormals.py 40", right=((cause("recurrent", "cpu", line=19),))),
    Case(
        "21",
        "launch -w 1 python -m cProfile -o x c19_cprofile.py",
        right=((batches(30),)),
        wrong=(("F9", notes("(?i)profil")),),
    ),
    Case(
        "22-spawn",
        "launch c20_workers.py 20 spawn",
        tracers=BOTH,
        right=(every("step", 10, 30), batches(20, 20), either(throughput(533), throughput(None))),
    ),
    Case(
        "22-fork",
        "launch c20_workers.py 20 fork",
        tracers=BOTH,
        right=(every("step", 10, 30), batches(20, 20), either(throughput(533), throughput(None))),
    ),
    Case("23-handler", "launch c21_exit.py handler", exit=3, right=(lasts("answer", 20),)),
    Case("23-handler", "launch c21_exit.py handler", exit=None, tracers=NSYS, right=(lasts("answer", 20),)),
    Case("23-sysexit", "launch c21_exit.py sysexit", tracers=BOTH, right=(lasts("answer", 20), batches(25))),
    Case(
        "23-oserror", "launch c21_exit.py oserror", tracers=BOTH, exit=1, right=(lasts("answer", 20), says("\\b7\\b"))
    ),
    Case(
        "24",
        "stress c22_freeze.py:answer --rate 50 --duration 10s --format json",
        modules=("aiohttp",),
        then=("slowest {out} --format json",),
        right=(
            reads("phases/0/latency/max/value", 1500, 0.2, run=0),
            reads("phases/0/latency/p95/value", 1000, 0.3, run=0),
            reads("phases/0/latency/p90/value", 500, 0.5, run=0),
            reads("phases/0/latency/mean/value", 115, 0.5, run=0),
            reads("loops/0/common/0/reason", "queue"),
        ),
    ),
    Case(
        "25",
        "launch --explain c23_affinity.py 30",
        right=((cause("decode", "contention"),)),
        wrong=(("F1", first("decode", "contention")),),
    ),
    Case(
        "26",
        "launch c24_service.py",
        then=(
            "compare c24_trt86.log {out} --map trtexec=batch --map compute=inference --spread 2% --format json",
            "compare c24_trt7.log {out}",
        ),
        right=(says('"inference"', 1), says('"preprocess"', 1), says("(?i)trtexec|TensorRT", 2), exits(1, 2)),
    ),
    Case(
        "27",
        "launch -w 1 c25_broken_batches.py",
        right=(batches(20), lasts("infer", 6)),
        wrong=(("F8", notes(r"\b10\b.*batch")),),
    ),
    Case(
        "28",
        "launch --explain c26_pool_per_batch_items.py",
        right=(lasts("preprocess", 16), cause("preprocess", "stage", line=18), outside("preprocess_one", 240, 8)),
    ),
    Case(
        "29",
        "launch c27_every_tenth.py",
        right=(lasts("batch", 15, statistic="mean"), lasts("flush", 50), lasts("infer", 10)),
        wrong=(("F3", times_fit),),
    ),
    Case(
        "29b",
        "launch c47_reload_rare.py",
        right=(lasts("batch", 25, statistic="mean"), lasts("reload", 1500), lasts("answer", 10)),
        wrong=(("F3", times_fit),),
    ),
    Case(
        "30",
        "launch c07_short_last_batch.py",
        exit=None,
        tracers=NSYS,
        environ=(("NVTX_DISABLE", "1"),),
        wrong=(("F10", either(batches(10), notes("NVTX_DISABLE"))),),
    ),
    Case("33", "launch --module pytest -q c31_test_bench.py", quick=True, exit=1, right=(batches(20),)),
    Case(
        "34",
        "bench --model {tiny} --backend onnxruntime --device cuda -o {out}",
        modules=("onnxruntime", "onnx"),
        right=(says("CUDAExecutionProvider"),),
    ),
    Case(
        "35",
        "launch in.py",
        files=(("in.py", "input('trust this code? ')\n"),),
        quick=True,
        exit=1,
        right=(says("EOFError"),),
        wrong=(("F11", silent("without perfharness")),),
    ),
    Case(
        "36",
        "mlperf {tiny} --backend onnxruntime --scenario SingleStream --min-duration 2 --format json -o {out}",
        modules=("onnxruntime", "mlperf_loadgen"),
        right=((reads("valid", True),)),
    ),
    Case(
        "36-server",
        "mlperf {tiny} --backend onnxruntime --scenario Server --min-duration 2 --target-qps 20000 --target-latency 1 "
        "--format json -o {out}",
        modules=("onnxruntime", "mlperf_loadgen"),
        exit=3,
        right=(says("(?i)latency"), reads("valid", False)),
    ),
    Case(
        "36b",
        "mlperf {tiny} --backend onnxruntime --scenario Offline --min-duration 2 --max-batch 1 --format json -o {out}",
        modules=("onnxruntime", "mlperf_loadgen"),
        exit=None,
        sometimes=(("F12", exits(0)),),
    ),
    Case(
        "38",
        "stress http://127.0.0.1:{port}/ --start 'python c37_server.py {port}' --rate 70 --duration 8s --format json",
        modules=("aiohttp",),
        right=(reads("phases/0/achieved_rate", 38, 0.32), says("rate-not-achieved")),
    ),
    Case(
        "39",
        "launch c38_two_recorders.py",
        right=((lasts("batch", 10),)),
        wrong=(("F13", silent("no batch was open")),),
    ),
    Case(
        "39b",
        "launch c38b_library_domain.py",
        tracers=BOTH,
        right=((lasts("join", 8),)),
        wrong=(("F2", accounted("merge", 6)), ("F2", accounted("aten::linear", 2))),
    ),
    Case(
        "40", "launch c39_names.py", quick=True, right=(batches(20), says("gpu_time")), wrong=(("F14", fits(200, 60)),)
    ),
    Case("41-loops", "launch c40_two_loops.py", right=(batches(120), throughput(200), lasts("answer", 10))),
    Case("41-recursion", "launch c41_recursion.py", right=((every("visit", 30, 20, 10),))),
    Case(
        "41-warm-up",
        "launch -w 5 c06_two_epochs.py 4",
        exit=None,
        quick=True,
        right=(throughput(None), batches(8), says("-w 5")),
    ),
    Case(
        "42-py-spy",
        "launch -w 0 py-spy record -o x.svg -- python c07_short_last_batch.py",
        tracers=BOTH,
        programs=("py-spy",),
        right=(batches(10), throughput(1000)),
    ),
    Case(
        "42-nsys-inside",
        "launch -w 0 {nsys} profile -o y python c07_short_last_batch.py",
        needs_nsys=True,
        right=(batches(10), throughput(1000)),
    ),
    Case(
        "42-nsys-in-nsys",
        "launch {nsys} profile -o z python c07_short_last_batch.py",
        tracers=NSYS,
        exit=1,
        wrong=(("F11", silent("script ended with this code itself")),),
    ),
    Case(
        "43",
        "launch --explain -np 2 -w 2 c46_torch_np2.py 30",
        modules=("torch",),
        wrong=(("F15", cause("model", "contention")),),
    ),
    Case(
        "43-mended",
        "launch --explain -np 2 -w 2 c46_torch_np2.py 30",
        modules=("torch",),
        environ=(("OMP_NUM_THREADS", "1"),),
        right=((batches(30, 30),)),
    ),
)
"""Reports of users, by their number; `-mended` is the program without its fault."""

TRUTHS = (
    Case(
        "A-short-epochs",
        "launch -w 0 c60_short_epochs.py",
        folder="truth",
        right=(batches(60), lasts("frame", 8.5, statistic="mean")),
        wrong=(("A", rate_matches("frame")),),
    ),
    Case(
        "A-short-epochs-w1",
        "launch -w 1 c60_short_epochs.py",
        folder="truth",
        right=(rate_matches("frame"),),
        wrong=(("A", batches(58, measured=True)),),
    ),
    Case("A-double", "launch -w 1 c50_double.py", folder="truth", wrong=(("A", throughput_as_printed),)),
    Case(
        "A-lost-trace",
        "launch -np 2 -w 1 c49_lost_trace.py",
        exit=None,
        folder="truth",
        tracers=NSYS,
        wrong=(("A", throughput(None)),),
    ),
    Case(
        "A-warm-up-thread",
        "launch -w 3 c18b_warm_thread_heavy.py",
        folder="truth",
        right=((batches(86),)),
        wrong=(("A", either(throughput(485), throughput(None))),),
    ),
    Case(
        "B-tokens",
        "launch -w 1 c16_tokens.py",
        folder="truth",
        right=((lasts("prep", 5),)),
        wrong=(("B", saves_share("token", 0.88, 0.05)),),
    ),
    Case(
        "C-exit0",
        "launch -w 0 c19_dies.py exit0",
        exit=None,
        folder="truth",
        tracers=NSYS,
        wrong=(("C", both(batches(7), lasts("batch", 20.4, statistic="mean"))),),
    ),
    Case(
        "C-kill",
        "launch -w 0 c19_dies.py kill",
        folder="truth",
        tracers=NSYS,
        exit=1,
        wrong=(("C", both(batches(7), lasts("batch", 20.4, statistic="mean"))),),
    ),
    Case(
        "C-open-range",
        "launch -w 0 c47_lib_threads.py",
        exit=None,
        folder="truth",
        tracers=NSYS,
        wrong=(("C", both(exits(0), notes("forever"))),),
    ),
    Case(
        "D-mix",
        "launch -w 1 c55_mix.py",
        folder="truth",
        right=(lasts("batch", 14.5), lasts("infer", 2)),
        wrong=(("D", accounted("decode", 8)), ("D", accounted("lib_step", 4))),
    ),
    Case("E-last-step", "launch -w 1 c01b_last_step.py", folder="truth", wrong=(("E", lasts("load", 70.7)),)),
    Case(
        "F-unequal",
        "launch -np 2 -w 1 c22_unequal.py time",
        folder="truth",
        right=(batches(400, 40), throughput(330)),
        wrong=(("F", number("mean_data/u/pipeline/batch/cpu_time", 17.8, 0.25)),),
    ),
    Case(
        "G-spike",
        "launch -w 1 --telemetry c65_spike.py",
        folder="truth",
        sometimes=(("G", peak_memory),),
        then=("compare {out} {out} --format json",),
    ),
    Case(
        "H-bias",
        "launch -w 0 c20b_bias.py",
        folder="truth",
        right=((batches(150),)),
        wrong=(("H", range_exceeds_span("s6", 0.05)),),
    ),
    Case(
        "I-exec",
        "launch -w 0 c41_exec.py",
        exit=None,
        folder="truth",
        wrong=(
            (
                "I",
                both(
                    number("mean_data/half1/batch/batches", 6),
                    number("mean_data/half2/batch/batches", 6),
                    lasts("half1/batch", 10),
                    lasts("half2/batch", 20),
                ),
            ),
        ),
    ),
    Case(
        "J-same-name", "launch -w 1 c59_same.py", folder="truth", wrong=(("J", every("batch", 10, 100, of_mean=True)),)
    ),
    Case(
        "K-lines",
        "launch --explain e5_lines.py",
        folder="truth",
        right=((cause("parse", "cpu", line=8),)),
        wrong=(("K", line_takes("parse", 8, "sort")),),
    ),
    Case("K-second-cause", "launch --explain e6_gc.py", folder="truth", wrong=(("K", has_cause("alloc", "cpu", 12)),)),
    Case(
        "K-native",
        "launch --explain e2_compute_wait.py",
        folder="truth",
        right=(lasts("mixed", 32, 1.0),),
        sometimes=(("K", both(says("(?i)vdso"), silent("compiled at run time"))),),
    ),
)
"""Numbers that came out wrong, by the letter of their kind."""


def gpu(
    program: str, *right: Check, wrong: tuple[tuple[str, Check], ...] = (), tracers: tuple[str, ...] = BOTH
) -> Case:
    return Case(
        program[:3],
        f"launch --explain -w 4 {program}.py 40",
        right,
        wrong,
        tracers=tracers,
        folder="gpu",
        modules=("torch",),
    )


GPU_CASES = (
    gpu("g02_tolist_per_request", cause("suspect", "sync", line=32)),
    gpu(
        "g03_page_lock_each_batch",
        cause("suspect", "allocation", line=33),
        wrong=(("F1", first("suspect", "allocation")),),
    ),
    gpu("g04_kv_cat", wrong=(("G04", cause("suspect", "gpu", limit="memory")),)),
    gpu("g05_copy_per_sample", cause("suspect", "copies", line=31)),
    gpu("g06_nms_on_cpu", cause("suspect", "cpu", line=31)),
    gpu("g07_cpu_operator", cause("suspect", "cpu-or-copies", line=28)),
    gpu("g08_contiguous_copies", cause("suspect", "gpu", limit="memory")),
    gpu("g09_json_results", cause("suspect", "cpu", line=28)),
    gpu("g10_no_overlap", cause("suspect", "copy"), wrong=(("F1", first("suspect", "copy")),)),
    gpu("g11_grad_kept", wrong=(("G11", finds("memory-grows", "gpu-memory-grows")),)),
    gpu("g12_fp32_without_tf32", cause("suspect", "gpu", limit="compute")),
    gpu("g14_nonblocking_pageable", cause("suspect", "pageable", line=24)),
    gpu("g15_float_on_cpu", tracers=EMBEDDED, wrong=(("F1", cause("suspect", "cpu", line=25)),)),
    gpu("g15_float_on_cpu", cause("suspect", "cpu", line=25), tracers=NSYS),
    gpu("g16_topk_on_cpu", wrong=(("G16", cause("suspect", "cpu", line=27)), ("F1", first("suspect", "cpu")))),
    gpu("g17_graph_captured_each_batch", wrong=(("G16", cause("suspect", "capture", line=30)),)),
)
"""Programs for a GPU, by their number: what is expected of `suspect`, by both tracers."""
