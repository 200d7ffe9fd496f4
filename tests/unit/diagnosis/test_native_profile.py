"""Native functions of stages by samples: worked by hand, read back from the spool, named as the linker names them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.host_samples.host_profile import Spans, rows_of_stage, wilson
from perfharness.analysis.host_samples.native_profile import native_code_at, native_of_stage, native_profile
from perfharness.host_probe import perf_events, spool
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import FunctionTime, NativeFunction, NativeProfile
from perfharness.model.host_samples import HostProbe
from perfharness.model.text import short_function
from perfharness.trace.host_samples import keep_native_symbols, read_host_probe
from perfharness.trace.native_symbols import FILE_NAME, FileIdentity, FunctionNames
from tests.support.probe_builder import ProbeBuilder

MS = 1_000_000
THREAD = schema.global_tid(100, 100)
WORK = FunctionTime("work", "a.py", 3, is_native=False, self_ms=100.0, cumulative_ms=100.0, error_ms=1.0)


def spans(*intervals: tuple[int, int], batches: int = 1) -> Spans:
    start, end = np.asarray(intervals, dtype=np.int64).T
    return Spans(("r", "batch", "stage"), np.full(len(start), THREAD), start, end, batches)


def profiled(probe: HostProbe, of: Spans, on_cpu_ms: float | None) -> NativeProfile | None:
    own = native_of_stage(probe, of)
    return None if own is None else native_profile(probe, of, own, rows_of_stage(probe.samples, of), on_cpu_ms)


def code_at_work(probe: HostProbe, line_share: float) -> NativeFunction | None:
    own = native_of_stage(probe, spans((0, 100 * MS)))
    assert own is not None
    return native_code_at(own, WORK, line_share)


def test_cpu_time_of_own_threads_and_of_helpers() -> None:
    """Of 100 ms in two batches, the stage's thread is 70 ms in `heavy`, and runs 10 ms more than has samples."""
    builder = ProbeBuilder(MS)
    builder.sample(50 * MS, ["work@a.py:3"])
    builder.sample(50 * MS, ["other@a.py:9"], tid=300)
    builder.native(0, 70 * MS, "heavy")
    builder.native(70 * MS, 100 * MS, "light", "")
    builder.native(100 * MS, 200 * MS, "later")
    builder.native(40 * MS, 200 * MS, "", "/lib/libomp.so", tid=200)
    builder.native(0, 100 * MS, "python", tid=300)
    builder.native(0, 100 * MS, "elsewhere", pid=500, tid=500)
    profile = profiled(builder.build(), spans((0, 60 * MS), (60 * MS, 100 * MS), batches=2), on_cpu_ms=80.0)
    assert profile is not None
    assert (profile.samples, profile.cpu_ms, profile.kernel_ms) == (100, 50.0, 30.0)
    assert profile.error_ms == pytest.approx(1.96 * 10 / 2, rel=1e-3)  # of a count of 100
    heavy, light = profile.functions
    assert (heavy.library, heavy.function, heavy.cpu_ms, heavy.share) == ("/lib/libwork.so", "heavy", 35.0, 0.7)
    assert heavy.error == pytest.approx(wilson(0.7, 100))
    assert (light.library, light.function, light.cpu_ms) == (None, "light", 15.0)
    assert (profile.helper_threads, profile.helper_samples, profile.helper_cpu_ms) == (1, 60, 30.0)
    (helper,) = profile.helper_functions
    assert (helper.library, helper.function, helper.share, helper.called_at) == ("/lib/libomp.so", None, 1.0, None)


def test_time_in_the_kernel_within_the_error_is_not_reported() -> None:
    builder = ProbeBuilder(MS)
    builder.native(0, 100 * MS, "heavy")
    profile = profiled(builder.build(), spans((0, 100 * MS)), on_cpu_ms=119.0)
    assert profile is not None
    assert profile.kernel_ms is None
    assert profiled(ProbeBuilder(MS).build(), spans((0, 100 * MS)), 119.0) is None


def test_the_line_is_that_of_stacks_sampled_at_the_same_moments() -> None:
    """`work` and `rest` take turns of 0.5 ms; only stacks within 50 us of a native sample say which called it."""
    builder = ProbeBuilder(MS)
    for turn in range(100):
        at = turn * MS
        builder.native(at, at + MS // 2, "heavy", every_ns=MS // 2)
        builder.native(at + MS // 2, at + MS, "light", every_ns=MS // 2)
        offset = 40_000 if turn % 10 == 0 else 60_000
        builder.sample(at + MS // 4 + offset, ["call@/x/site-packages/lib.py:7", "work@a.py:3"])
        builder.sample(at + MS // 2 + MS // 4 - offset, ["rest@a.py:5"])
    probe = builder.build()
    profile = profiled(probe, spans((0, 100 * MS)), None)
    assert profile is not None
    lines = {one.function: one.called_at for one in profile.functions}
    assert {name: line and (line.function, line.line) for name, line in lines.items()} == {
        "heavy": ("work", 3), "light": ("rest", 5),
    }  # fmt: skip
    found = code_at_work(probe, line_share=0.5)
    assert found is not None
    assert (found.function, found.share, found.cpu_ms) == ("heavy", 1.0, 100.0)


def test_time_of_the_interpreter_and_of_tracers_is_no_native_code_of_a_line() -> None:
    for library in ("/usr/lib/libpython3.11.so.1.0", "/usr/bin/python3.13", "/opt/libToolsInjection64.so"):
        builder = ProbeBuilder(MS)
        builder.native(0, 100 * MS, "heavy", library)
        builder.samples(0, 100 * MS, ["work@a.py:3"])
        assert code_at_work(builder.build(), line_share=1.0) is None


def test_without_common_moments_shares_prove_what_they_have_in_common() -> None:
    """80 % in `heavy` and 90 % in `work`: at least 70 of its 90 % are in `heavy`. With 60 %, nothing is proven."""
    for heavy_ms, share in ((80, 70 / 90), (50, None)):
        builder = ProbeBuilder(MS)
        builder.native(0, heavy_ms * MS, "heavy")
        builder.native(heavy_ms * MS, 100 * MS, "eval", "/usr/bin/python3.13")
        found = code_at_work(builder.build(), line_share=0.9)
        assert (None if found is None else found.share) == (None if share is None else pytest.approx(share))
    builder = ProbeBuilder(MS)
    builder.native(0, 40 * MS, "eval", "/usr/bin/python3.13")
    builder.native(40 * MS, 75 * MS, "heavy")
    builder.native(75 * MS, 100 * MS, "light")
    most = code_at_work(builder.build(), line_share=1.0)
    assert most is not None
    assert most.function == "heavy"
    assert most.share == pytest.approx(0.35)  # of 60 % outside of the interpreter
    assert code_at_work(builder.build(), line_share=0.75) is None  # 35 % at least


# ---- names ----


class DlInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("start", ctypes.c_void_p),
    )  # fmt: skip


def in_file(address: int) -> tuple[str, int]:
    """Library, and offset in its file, of an address of this process."""
    return next(
        (path, address - start + offset)
        for start, end, offset, path in perf_events.code_maps(os.getpid())
        if start <= address < end
    )


def identity(path: str) -> FileIdentity:
    status = Path(path).stat()
    return FileIdentity(status.st_size, status.st_mtime_ns)


@pytest.mark.parametrize("name", ["qsort", "malloc", "getenv", "PyObject_Repr", "PyList_Append"])
def test_names_are_those_that_the_linker_finds(name: str) -> None:
    address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
    info = DlInfo()
    assert ctypes.CDLL(None).dladdr(ctypes.c_void_p(address + 3), ctypes.byref(info))
    path, offset = in_file(address)
    names = FunctionNames({path: identity(path)}, {})
    assert info.name.decode().lstrip("_").removeprefix("libc_") == name
    assert names.names(path, np.asarray([offset, offset + 3])) == [name, name]


# ---- the file ----


def test_rows_are_read_back_with_what_was_mapped_when_they_were_written(tmp_path: Path) -> None:
    """The same address is in another library after the first one was unloaded; one row is in no file."""
    sort = ctypes.cast(ctypes.CDLL(None).qsort, ctypes.c_void_p).value or 0
    libc, offset = in_file(sort)
    file = spool.Spool(str(tmp_path / spool.FILE_NAME))
    file.write_json(spool.META, {"pid": 100, "interval_ns": MS, "monotonic_ns": 0, "unix_ns": 0})
    page = offset // 4096 * 4096
    for path in ("/gone/libfirst.so", libc):
        file.native([perf_events.ROW.pack(0x10000 + offset - page, 100, 7, 5), perf_events.ROW.pack(64, 100, 7, 9)], MS)
        file.maps([(0x10000, 0x20000, page, path)])
        file.flush()
    file.write_json(spool.NATIVE_MISSING, ["native code: 3 samples"])
    file.close()

    def functions() -> list[tuple[str, str]]:
        recorded = read_host_probe(tmp_path)
        assert recorded is not None
        native = recorded.probe.native
        assert native is not None
        assert recorded.probe.native_missing == ("native code: 3 samples",)
        assert native.time_ns.tolist() == [5, 5, 9, 9]
        assert native.length_ns.tolist() == [MS] * 4
        assert set(native.thread.tolist()) == {100 << 24 | 7}
        found = [native.functions[number] for number in native.function.tolist()]
        return [(frame.function, frame.file) for frame in found]

    expected = [("", "/gone/libfirst.so"), ("qsort", libc), ("", ""), ("", "")]
    assert functions() == expected
    keep_native_symbols(tmp_path)
    kept = tmp_path / FILE_NAME
    kept.write_text(kept.read_text().replace("qsort", "kept"))
    assert functions() == [expected[0], ("kept", libc), *expected[2:]]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("dgemm_kernel", "dgemm_kernel"),
        ("void at::native::gemm<float, 3>(float*, long)", "at::native::gemm"),
        ("void c10::function_ref<void (char**, long)>::callback_fn<at::(anonymous namespace)::f<a> >(long)",
         "c10::function_ref::callback_fn"),
        ("std::vector<int>::operator[](unsigned long) const", "std::vector::operator[]"),
        ("Foo::operator()(int) const", "Foo::operator()"),
        ("f(int) [clone .isra.0]", "f"),
        ("std::operator<< <char>(x)", "std::operator<< <char>(x)"),
        ("<core::X as Y>::next", "<core::X as Y>::next"),
        ("begin" + 60 * "a", "…" + 59 * "a"),
        ("", ""),
    ],
)  # fmt: skip
def test_names_of_native_functions_are_short(name: str, short: str) -> None:
    assert short_function(name) == short


@given(st.text("ab<>()[]: *&,", max_size=100))
def test_any_name_is_short(name: str) -> None:
    assert len(short_function(name)) <= 60
