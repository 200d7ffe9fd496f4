"""Names of kernels: mangled, demangled, and the bare function name."""

from __future__ import annotations

import ctypes
import ctypes.util
from dataclasses import dataclass

_ANONYMOUS = "(anonymous namespace)"
_ANONYMOUS_STAND_IN = "\x00"


@dataclass(frozen=True)
class KernelName:
    """The three names of a kernel in nsys's tables."""

    mangled: str
    demangled: str
    short: str


class Demangler:
    """`abi::__cxa_demangle` of the C++ library; without one, names stay mangled."""

    def __init__(self) -> None:
        self._demangle = None
        try:
            library = ctypes.CDLL("libstdc++.so.6")
        except OSError:
            return
        self._demangle = library["__cxa_demangle"]
        self._demangle.restype = ctypes.c_void_p
        self._free = ctypes.CDLL(None).free

    def name(self, mangled: str) -> KernelName:
        """All three names of one kernel."""
        demangled = self._demangled(mangled)
        return KernelName(mangled, demangled, short_name(demangled))

    def _demangled(self, mangled: str) -> str:
        if self._demangle is None or not mangled.startswith("_Z"):
            return mangled
        status = ctypes.c_int()
        address = self._demangle(mangled.encode(), None, None, ctypes.byref(status))
        if status.value != 0 or not address:
            return mangled
        text = ctypes.string_at(address).decode(errors="replace")
        self._free(ctypes.c_void_p(address))
        return text


def short_name(demangled: str) -> str:
    """The function's own name: no return type, no namespace, no template arguments, no parameters."""
    text = demangled.replace(_ANONYMOUS, _ANONYMOUS_STAND_IN)
    depth = 0
    last = 0
    for at, character in enumerate(text):
        if character in "<([{":
            if character == "(" and depth == 0:
                text = text[:at]
                break
            depth += 1
        elif character in ">)]}":
            depth -= 1
        elif depth == 0 and (character == " " or text.startswith("::", at)):
            last = at + (1 if character == " " else 2)
    name = text[last:].split("<", 1)[0].strip()
    return name.replace(_ANONYMOUS_STAND_IN, _ANONYMOUS) or demangled
