"""Text of others (names, paths, output of programs), made fit to be printed."""

from __future__ import annotations

import json
import re
import sys

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # direction of writing, line and paragraph separators
    "\ud800-\udfff]"  # bytes that were no UTF-8
)
"""Characters that move the cursor, change the terminal or the order of what is read."""

LONGEST_FUNCTION = 60
"""Characters of a function's name in a table: instances of C++ templates have names of a thousand."""

BEYOND_ASCII = re.compile("[^\x00-\x7e]+")


def safe(text: str) -> str:
    r"""The text with every character that could steer a terminal as an escape sequence of Python (`\x1b`)."""
    return STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def safe_line(text: str) -> str:
    """The same, in one line."""
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def percentile_label(name: str) -> str:
    """`p99_9` -> `p99.9`."""
    return name.replace("_", ".")


def short_function(name: str) -> str:
    """A native function's name with its namespaces, without types: `at::native::gemm` of
    `void at::native::gemm<float>(float*)`. What is still too long loses its beginning.
    """
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
    """JSON text with every character beyond ASCII escaped: it means the same, whatever the locale or the terminal."""
    return BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def keep_encodable() -> None:
    """Let characters that the locale cannot encode be written as escape sequences, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
