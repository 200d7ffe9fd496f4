"""Starting CUPTI as CUDA is first used: the library that the driver loads, called as the driver calls it."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.tracer import injection
from perfharness.tracer.cupti import Cupti, CuptiError
from perfharness.tracer.injection import CUDA_VARIABLE, NVTX_VARIABLE, Injection, Step, make_calls

pytestmark = pytest.mark.skipif(not injection.supported(), reason="no machine code for this processor")

Function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
ANSWER = 41

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
numbers = itertools.count()


class Library:
    """CUPTI whose functions note their calls; `f0`, `f1`, … return the results that are given."""

    def __init__(self, results: list[int]) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.functions = {f"f{number}": Function(self._make(f"f{number}", one)) for number, one in enumerate(results)}
        self.functions[injection.NVTX_FUNCTION] = Function(self._make("nvtx", ANSWER))

    def _make(self, name: str, result: int) -> Any:
        def function(*arguments: int) -> int:
            self.calls.append((name, *arguments) if name != "nvtx" else (name, arguments[0], 0, 0))
            return result

        return function

    def call(self, function: str, *arguments: Any) -> None:
        filled = [one.value for one in arguments] + [0] * (3 - len(arguments))
        code = self.functions[function](*filled)
        if code:
            raise self.error(function, code)

    def error(self, function: str, code: int) -> CuptiError:
        return CuptiError(function, code, "made up")

    def has(self, function: str) -> bool:
        return function in self.functions

    def address(self, function: str) -> int:
        return ctypes.cast(self.functions[function], ctypes.c_void_p).value or 0


@pytest.fixture(autouse=True)
def no_injection() -> Iterator[None]:
    """What is set for C only is removed there."""
    yield
    for name in (CUDA_VARIABLE, NVTX_VARIABLE):
        libc.unsetenv(name.encode())


def made(folder: Path, library: Library, steps: list[Step]) -> Injection:
    own = folder / str(next(numbers))  # a name that was loaded once is never loaded again
    own.mkdir()
    found = Injection(steps, cast(Cupti, library), str(own))
    assert list(own.iterdir()) == []
    return found


def loaded(variable: str) -> ctypes.CDLL:
    """What the driver, or NVTX, loads. It has no file any more."""
    path = libc.getenv(variable.encode())
    assert variable not in os.environ
    return ctypes.CDLL(path.decode())


def test_nothing_is_called_before_the_driver_calls_and_everything_once_then(tmp_path: Path) -> None:
    library = Library([0, 0])
    found = made(tmp_path, library, [Step("f0", (1, 1 << 40, 3)), Step("f1")])
    assert (library.calls, found.has_begun) == ([], False)
    for _ in range(2):
        assert loaded(CUDA_VARIABLE).InitializeInjection() == 1
    assert library.calls == [("f0", 1, 1 << 40, 3), ("f1", 0, 0, 0)]
    assert found.has_begun
    found.check()


@st.composite
def lists_of_steps(draw: st.DrawFn) -> tuple[list[int], list[Step]]:
    """Results of the functions, and steps whose jumps go forward, to the end at most."""
    results = draw(st.lists(st.sampled_from([0, 0, 15]), min_size=1, max_size=4))
    count = draw(st.integers(0, 7))
    number = st.integers(0, 2**64 - 1)
    steps = []
    for at in range(count):
        later = st.none() | st.integers(at + 1, count)
        function = f"f{draw(st.integers(0, len(results) - 1))}"
        steps.append(Step(function, tuple(draw(st.lists(number, max_size=3))), draw(later), draw(later)))
    return results, steps


@given(lists_of_steps())
def test_the_machine_code_does_as_python_does(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[list[int], list[Step]]
) -> None:
    results, steps = case
    expected, library = Library(results), Library(results)
    failed: CuptiError | None = None
    try:
        make_calls(steps, cast(Cupti, expected))
    except CuptiError as error:
        failed = error
    found = made(tmp_path_factory.getbasetemp(), library, steps)
    loaded(CUDA_VARIABLE).InitializeInjection()
    assert library.calls == expected.calls
    if failed is None:
        found.check()
    else:
        with pytest.raises(CuptiError) as caught:
            found.check()
        assert (str(caught.value), caught.value.code) == (str(failed), failed.code)
