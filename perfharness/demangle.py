"""Names of C++ functions as they are written in C++."""

from __future__ import annotations

import ctypes


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

    def demangled(self, mangled: str) -> str:
        """The name as it is written in C++."""
        if self._demangle is None or not mangled.startswith("_Z"):
            return mangled
        status = ctypes.c_int()
        address = self._demangle(mangled.encode(), None, None, ctypes.byref(status))
        if status.value != 0 or not address:
            return mangled
        text = ctypes.string_at(address).decode(errors="replace")
        self._free(ctypes.c_void_p(address))
        return text
