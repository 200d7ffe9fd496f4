"""LoadGen's logs, read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.errors import ResultError

MLLOG = ":::MLLOG "
SATISFIED = re.compile(r"^\s+(?P<what>.+?)(?: satisfied)?\s*: NO$")
SECTION = re.compile(r"^={10,}$")


@dataclass(frozen=True)
class Summary:
    """`mlperf_log_summary.txt`.

    Args:
        headline: name and number of what the scenario is judged by; None: there is none.
        unsatisfied: constraints that were not met.
    """

    validity: str | None = None
    headline: tuple[str, float] | None = None
    unsatisfied: list[str] = field(default_factory=list)
    recommendations: list[str] = field(default_factory=list)
    early_stopping: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Detail:
    """`mlperf_log_detail.txt`: the last value of each key, and the messages."""

    values: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def starting(self, prefix: str) -> dict[str, Any]:
        """The values whose keys begin so, without that."""
        return {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}


HEADLINES = ("percentile latency (ns)", "amples per second", "ueries per second")


def read_summary(path: Path) -> Summary:
    """The verdict and its reasons. Raises `ResultError` where the file cannot be read."""
    validity, headline, lists = None, None, {"Recommendations": list[str](), "Early Stopping Result": list[str]()}
    unsatisfied, into = [], None
    for number, line in enumerate(_text(path).splitlines()):
        name, _, value = (part.strip() for part in line.partition(":"))
        if SECTION.match(line) and number > 2:
            break
        if line.startswith("Result is"):
            validity = value
        elif headline is None and validity is None and any(text in name for text in HEADLINES):
            headline = (name, float(value))
        elif found := SATISFIED.match(line):
            unsatisfied.append(found["what"])
        elif name in lists and not value:
            into = lists[name]
        elif into is not None and line.strip():
            text = line.strip().removeprefix("* ")
            into.append(text)
    return Summary(validity, headline, unsatisfied, lists["Recommendations"], lists["Early Stopping Result"])


def read_detail(path: Path) -> Detail:
    """Settings, results and messages. Raises `ResultError` where the file cannot be read; lines of others are skipped,
    and one that is cut off.
    """
    found = Detail()
    for line in _text(path).splitlines():
        if not line.startswith(MLLOG):
            continue
        try:
            entry = json.loads(line[len(MLLOG) :])
            key, value, meta = entry["key"], entry["value"], entry["metadata"]
        except (ValueError, KeyError, TypeError):
            continue
        found.values[key] = value
        if meta.get("is_error"):
            found.errors.append(f"{key}: {value}")
        if meta.get("is_warning"):
            found.warnings.append(f"{key}: {value}")
    return found


SAMPLE = re.compile(
    r'"name":"Sample".*?"ph":"b".*?"ts":(?P<ts>-?[\d.]+).*?"query_seq":(?P<query>\d+).*?'
    r'"issue_start_ns":(?P<issued>-?\d+),"complete_ns":(?P<done>-?\d+)'
)


@dataclass(frozen=True)
class Scheduled:
    """Queries of `mlperf_log_trace.json`, by their number, in ns.

    Args:
        at_ns: when each was scheduled, since LoadGen's own origin.
        issued_ns, done_ns: after that.
    """

    queries: npt.NDArray[np.int64]
    at_ns: npt.NDArray[np.int64]
    issued_ns: npt.NDArray[np.int64]
    done_ns: npt.NDArray[np.int64]


def read_trace(path: Path) -> Scheduled:
    """When queries were scheduled; the file is no valid JSON, so its lines are. Raises `ResultError`."""
    rows = sorted(
        (int(found["query"]), round(float(found["ts"]) * 1e3), int(found["issued"]), int(found["done"]))
        for line in _text(path).splitlines()
        if (found := SAMPLE.search(line))
    )
    columns = np.array(rows, np.int64).reshape(-1, 4)
    return Scheduled(*(np.ascontiguousarray(column) for column in columns.T))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise ResultError(f"{path} cannot be read: {error.strerror}; LoadGen did not write it") from error
