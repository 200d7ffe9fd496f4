"""The CPU quota of a process's control groups (`docker --cpus`, limits of Kubernetes), version 2.

The kernel gives a group so much CPU time per period; when that is used up, all of the group stands still until the
period ends. A quota may be set on the group of the process or on any above it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from perfharness.telemetry.processes import FollowedProcess
from perfharness.telemetry.readings import Values

SEARCH_NS = 1_000_000_000
"""A process may be moved, and a quota set, while it runs."""

NO_QUOTA = "no CPU quota is set for its control groups, as far as they can be seen"
NO_GROUPS = "the control groups of the process cannot be seen from here (version 2 is needed)"


@dataclass(frozen=True)
class Quota:
    """What a group may use per period, and has used; times in ns."""

    quota_ns: int
    period_ns: int
    throttled_ns: int = 0
    throttled_periods: int = 0
    cpu_time_ns: int = 0


class CpuQuotas:
    """Quotas of the followed processes.

    Args:
        root: of the file system, for tests.
    """

    def __init__(self, followed: list[FollowedProcess], root: Path = Path("/")) -> None:
        self._followed = followed
        self._root = root
        self._groups: dict[str, _Groups] = {}

    def read(self) -> Values:
        """One reading of each process; of one without a quota, a reading per second."""
        values: Values = {}
        for process in list(self._followed):
            if process.subject not in self._groups:
                self._groups[process.subject] = _Groups(process, self._root)
            values |= self._groups[process.subject].read()
        return values


class _Groups:
    """The quotas of one process, added up since it is followed."""

    def __init__(self, process: FollowedProcess, root: Path) -> None:
        self._process = process
        self._root = root
        self._search_at_ns = 0
        self._folders: list[Path] | None = []
        self._before: dict[Path, Quota] = {}
        self._throttled_ns = self._throttled_periods = self._cpu_time_ns = 0

    def read(self) -> Values:
        now, subject = time.monotonic_ns(), self._process.subject
        is_search = now >= self._search_at_ns
        if is_search:
            self._search_at_ns = now + SEARCH_NS
            text = _text(self._root / f"proc/{self._process.pid}/cgroup")
            if not text:  # the process has ended
                self._folders = []
                return {}
            self._folders = self._found(text)
        elif not self._folders:
            return {}
        if self._folders is None:
            return {
                (subject, metric): NO_GROUPS
                for metric in ("quota_cpus", "quota_throttled_ns", "quota_throttled_periods")
                if is_search
            }
        quotas = {folder: quota for folder in self._folders if (quota := _quota(folder)) is not None}
        self._folders = list(quotas)
        self._add(quotas)
        values: Values = {
            (subject, "quota_throttled_ns"): self._throttled_ns,
            (subject, "quota_throttled_periods"): self._throttled_periods,
        }
        if quotas:
            values[subject, "quota_cpu_time_ns"] = self._cpu_time_ns
        if is_search and quotas:
            least = min(quotas.values(), key=lambda one: one.quota_ns / one.period_ns)
            values[subject, "quota_cpus"] = least.quota_ns / least.period_ns
            values[subject, "quota_period_ns"] = least.period_ns
        elif is_search:
            values[subject, "quota_cpus"] = NO_QUOTA
        return values

    def _found(self, cgroup: str) -> list[Path] | None:
        """Folders of the process's group and of those above it; None: of version 1, or not mounted here."""
        mount = self._root / "sys/fs/cgroup"
        own = mount / cgroup.strip().removeprefix("0::/")
        if len(cgroup.splitlines()) > 1 or ".." in own.parts or not (own / "cpu.stat").is_file():
            return None
        return [own, *(above for above in own.parents if above.is_relative_to(mount))]

    def _add(self, quotas: dict[Path, Quota]) -> None:
        """Add what changed in the group that held the process up most: one above it stops the others, too."""
        changes = [(self._before[folder], now) for folder, now in quotas.items() if folder in self._before]
        self._before = quotas
        if changes:
            before, now = max(changes, key=lambda one: one[1].throttled_ns - one[0].throttled_ns)
            self._throttled_ns += now.throttled_ns - before.throttled_ns
            self._throttled_periods += now.throttled_periods - before.throttled_periods
            self._cpu_time_ns += now.cpu_time_ns - before.cpu_time_ns


def _quota(group: Path) -> Quota | None:
    """What a group may use, and has used; None where it has no quota."""
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    counts = dict(line.split(maxsplit=1) for line in _text(group / "cpu.stat").splitlines() if " " in line)
    if not quota.isdecimal() or not period.isdecimal() or "nr_throttled" not in counts:
        return None  # `max`, or the topmost group
    return Quota(
        quota_ns=1000 * int(quota),
        period_ns=1000 * int(period),
        throttled_ns=1000 * int(counts["throttled_usec"]),
        throttled_periods=int(counts["nr_throttled"]),
        cpu_time_ns=1000 * int(counts["usage_usec"]),
    )


def _text(path: Path) -> str:
    """A small file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
