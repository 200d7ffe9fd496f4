"""The CPU quota of a process's control groups (`docker --cpus`, limits of Kubernetes), version 2.

The kernel gives a group so much CPU time per period; when that is used up, all of the group stands still until the
period ends. A quota may be set on the group of the process or on any above it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from perfharness.telemetry.processes import FollowedProcess
from perfharness.telemetry.readings import Values

SEARCH_NS = 1_000_000_000
"""A process may be moved, and a quota set, while it runs."""

NO_QUOTA = "no CPU quota is set for its control groups, as far as they can be seen"
NO_GROUPS = "the control groups of the process cannot be seen from here (version 2 is needed)"
THROTTLED = ("quota_throttled_ns", "quota_throttled_periods")


class Quota(NamedTuple):
    """What a group may use per period, and has used."""

    quota_ns: int
    period_ns: int
    throttled_ns: int
    throttled_periods: int
    cpu_time_ns: int


class CpuQuota:
    """The quotas of one process, added up since it is followed.

    Args:
        root: of the file system, for tests.
    """

    def __init__(self, process: FollowedProcess, root: Path = Path("/")) -> None:
        self._process, self._root = process, root
        self._search_at_ns = 0
        self._folders: list[Path] = []
        self._before: dict[Path, Quota] = {}
        self._used = [0, 0, 0]

    def read(self) -> Values:
        """One reading; of a process without a quota, one per second."""
        now_ns, subject = time.monotonic_ns(), self._process.subject
        is_search = now_ns >= self._search_at_ns
        if is_search:
            self._search_at_ns = now_ns + SEARCH_NS
            groups = _text(self._root / f"proc/{self._process.pid}/cgroup")
            self._folders = self._found(groups)
            if groups and not self._folders:
                return dict.fromkeys(((subject, metric) for metric in ("quota_cpus", *THROTTLED)), NO_GROUPS)
        if not self._folders:  # or the process has ended
            return {}
        quotas = {folder: quota for folder in self._folders if (quota := _quota(folder)) is not None}
        self._folders = list(quotas)
        self._add(quotas)
        *throttled, cpu_time_ns = self._used
        values: Values = {(subject, metric): used for metric, used in zip(THROTTLED, throttled, strict=True)}
        if quotas:
            values[subject, "quota_cpu_time_ns"] = cpu_time_ns
        if is_search and quotas:
            least = min(quotas.values(), key=lambda one: one.quota_ns / one.period_ns)
            values[subject, "quota_cpus"] = least.quota_ns / least.period_ns
            values[subject, "quota_period_ns"] = least.period_ns
        elif is_search:
            values[subject, "quota_cpus"] = NO_QUOTA
        return values

    def _found(self, groups: str) -> list[Path]:
        """Folders of the process's group and of those above it; none: of version 1, or not mounted here."""
        mount = self._root / "sys/fs/cgroup"
        own = mount / groups.strip().removeprefix("0::/")
        if len(groups.splitlines()) != 1 or ".." in own.parts or not (own / "cpu.stat").is_file():
            return []
        return [own, *(above for above in own.parents if above.is_relative_to(mount))]

    def _add(self, quotas: dict[Path, Quota]) -> None:
        """Add what changed in the group that held the process up most: one above it stops the others, too."""
        pairs = [(quota, self._before[folder]) for folder, quota in quotas.items() if folder in self._before]
        self._before = quotas
        if pairs:
            now, before = max(pairs, key=lambda pair: pair[0].throttled_ns - pair[1].throttled_ns)
            self._used = [used + new - old for used, new, old in zip(self._used, now[2:], before[2:], strict=True)]


def _quota(group: Path) -> Quota | None:
    """What a group may use, and has used; None: it has no quota (`max`), or is the topmost group."""
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    counts = dict(line.split(maxsplit=1) for line in _text(group / "cpu.stat").splitlines() if " " in line)
    if not quota.isdecimal() or not period.isdecimal() or "nr_throttled" not in counts:
        return None
    throttled_us, periods, used_us = (int(counts[name]) for name in ("throttled_usec", "nr_throttled", "usage_usec"))
    return Quota(1000 * int(quota), 1000 * int(period), 1000 * throttled_us, periods, 1000 * used_us)


def _text(path: Path) -> str:
    """A small file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
