"""CPU quota of a process's control groups, version 2 (`docker --cpus`, Kubernetes limits).

The kernel stops a group without CPU time left until the period ends. Any group above the process may have a quota.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from perfharness.telemetry.processes import FollowedProcess
from perfharness.telemetry.readings import Values

SEARCH_NS = 1_000_000_000
"""Search period, because a process may be moved, or a quota set, while it runs."""

NO_QUOTA = "its visible control groups have no CPU quota"
NO_GROUPS = "the control groups of the process are not visible (version 2 is needed)"
THROTTLED = ("quota_throttled_ns", "quota_throttled_periods")


class Quota(NamedTuple):
    """Quota per period and use of a group."""

    quota_ns: int
    period_ns: int
    throttled_ns: int
    throttled_periods: int
    cpu_time_ns: int


class CpuQuota:
    """Quotas of one process, summed since it is followed.

    Args:
        root: root of the file system, replaced in tests.
    """

    def __init__(self, process: FollowedProcess, root: Path = Path("/")) -> None:
        self._process, self._root = process, root
        self._search_at_ns = 0
        self._folders: list[Path] = []
        self._before: dict[Path, Quota] = {}
        self._used = [0, 0, 0]

    def read(self) -> Values:
        """Read once; a process without a quota is checked once per second."""
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
        """Folders of the process's group and those above it; empty for version 1 or if not mounted."""
        mount = self._root / "sys/fs/cgroup"
        own = mount / groups.strip().removeprefix("0::/")
        if len(groups.splitlines()) != 1 or ".." in own.parts or not (own / "cpu.stat").is_file():
            return []
        return [own, *(above for above in own.parents if above.is_relative_to(mount))]

    def _add(self, quotas: dict[Path, Quota]) -> None:
        """Add the changes of the group that stopped the process longest; groups above it stop the ones below."""
        pairs = [(quota, self._before[folder]) for folder, quota in quotas.items() if folder in self._before]
        self._before = quotas
        if pairs:
            now, before = max(pairs, key=lambda pair: pair[0].throttled_ns - pair[1].throttled_ns)
            self._used = [used + new - old for used, new, old in zip(self._used, now[2:], before[2:], strict=True)]


def _quota(group: Path) -> Quota | None:
    """Quota and use of a group; None without a quota (`max`), and for the topmost group."""
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    counts = dict(line.split(maxsplit=1) for line in _text(group / "cpu.stat").splitlines() if " " in line)
    if not quota.isdecimal() or not period.isdecimal() or "nr_throttled" not in counts:
        return None
    throttled_us, periods, used_us = (int(counts[name]) for name in ("throttled_usec", "nr_throttled", "usage_usec"))
    return Quota(1000 * int(quota), 1000 * int(period), 1000 * throttled_us, periods, 1000 * used_us)


def _text(path: Path) -> str:
    """Content of a small file; empty if unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
