"""Safe printing of foreign text: names, paths, output of programs."""

from __future__ import annotations

import json
import re
import sys

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and newline, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # bidirectional controls, line and paragraph separators
    "\ud800-\udfff]"  # surrogates: bytes that are not UTF-8
)
"""Control characters and others that change what a reader sees."""

LONGEST_FUNCTION = 60
"""Characters; names of C++ template instances can have a thousand."""

BEYOND_ASCII = re.compile("[^\x00-\x7e]+")


def safe(text: str) -> str:
    r"""Escape control characters as Python does (`\x1b`)."""
    return STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def safe_line(text: str) -> str:
    """Escape control characters, tabs and line breaks."""
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def percentile_label(name: str) -> str:
    """`p99_9` -> `p99.9`."""
    return name.replace("_", ".")


def short_function(name: str) -> str:
    """`void at::native::gemm<float>(float*)` -> `at::native::gemm`. Cuts the beginning of longer names."""
    text = name.partition(" [clone ")[0].replace("(anonymous namespace)::", "").replace("operator()", "operator\0")
    depth, kept = 0, []
    for character in text:
        depth -= character in ">)"
        if depth == 0 and character not in "<>()":
            kept.append(character)
        depth += character in "<("
    short = "".join(kept).replace(" const", "").rpartition(" ")[2].replace("operator\0", "operator()")
    if depth or not short or short.startswith("::") or "operator<" in text or "operator>" in text:
        short = name
    return short if len(short) <= LONGEST_FUNCTION else f"…{short[1 - LONGEST_FUNCTION :]}"


def ascii_json(text: str) -> str:
    """Escape non-ASCII characters of JSON text, so that it is valid in every locale."""
    return BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def keep_encodable() -> None:
    """Print characters that the locale cannot encode as escape sequences."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
