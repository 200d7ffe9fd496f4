from __future__ import annotations

import pytest

from perfharness.demangle import Demangler
from perfharness.tracer.gpu_tables import short_name


@pytest.mark.parametrize(
    ("demangled", "short"),
    [
        ("vector_add", "vector_add"),
        ("vector_add(float*, int)", "vector_add"),
        ("void gemm<float, 128, (bool)1>(Params<float>)", "gemm"),
        (
            "void at::native::elementwise_kernel<4, at::native::Fill<float> >(int, at::Fill<float>)",
            "elementwise_kernel",
        ),
        ("void (anonymous namespace)::softmax<3>(float*)", "softmax"),
        ("at::native::(anonymous namespace)::indexed<int>(int)", "indexed"),
        ("unsigned long ns::f<(int)4>(g(int))", "f"),
        ("void ns::outer<ns::inner(int)>::kernel<8>(int)", "kernel"),
        ("", ""),
    ],
)
def test_short_names(demangled: str, short: str) -> None:
    assert short_name(demangled) == short


def test_demangled_by_the_c_plus_plus_library() -> None:
    mangled = "_ZN2at6native4fillIfEEvPT_i"
    demangled = Demangler().demangled(mangled)
    if demangled == mangled:
        pytest.skip("there is no libstdc++.so.6 on this machine")
    assert demangled == "void at::native::fill<float>(float*, int)"


@pytest.mark.parametrize("name", ["triton_poi_fused_add", "_Zbroken", ""])
def test_names_that_are_not_mangled_stay(name: str) -> None:
    assert Demangler().demangled(name) == name
