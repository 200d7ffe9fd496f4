"""The CPU quota of a process's control groups (`docker --cpus`, limits of Kubernetes), and how it held the process up.

The kernel gives a group so much CPU time a period; when that is used up, all of the group stands still until the period
ends. A quota may be set on the group of the process or on any above it, as far as they can be seen from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfharness.telemetry.protocol import FollowedProcess
from perfharness.telemetry.source import Metric, SamplerContext, Source, Tape

PERIOD_NS = 20_000_000
"""A fifth of the usual period of a quota, so that it is known when in it the group stood still."""

FIND_EVERY_NS = 1_000_000_000
"""A process may be moved, and a quota set, while it runs."""

NO_QUOTA = "no CPU quota is set for its control groups, as far as they can be seen"
NO_GROUPS = "the control groups of the process cannot be seen from here"


@dataclass(frozen=True)
class Quota:
    """What a group may use, and has used; times in ns. `cpu_time_ns` is None where it is not counted for that group."""

    quota_ns: int
    period_ns: int
    throttled_ns: int
    throttled_periods: int
    cpu_time_ns: int | None


@dataclass(frozen=True)
class _Hierarchy:
    """Where a controller is mounted: `root` is the group at `folder`."""

    folder: Path
    root: str

    def levels(self, group: str) -> list[Path]:
        """The folders of a group and of those above it, as far as they are mounted; empty: the group is not."""
        root = self.root.rstrip("/")
        if ".." in group.split("/") or not (group == root or group.startswith(root + "/")):
            return []
        folder = self.folder / group[len(root) :].strip("/")
        return [folder, *[above for above in folder.parents if above.is_relative_to(self.folder)]]


class ControlGroups:
    """The groups of one process, version 1 or 2.

    Args:
        root: of the file system, for tests.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._file = root / f"proc/{pid}/cgroup"
        self._root = root

    def is_running(self) -> bool:
        """Whether the process is there, and the system has control groups."""
        return bool(_text(self._file))

    def limited(self) -> list[QuotaGroup] | None:
        """The groups with a quota, the process's own first; None where they cannot be seen."""
        mounts, groups = self._mounts(), self._groups()
        version_1 = "cpu" in mounts and "cpu" in groups
        controller = "cpu" if version_1 else ""
        if controller not in mounts or controller not in groups:
            return None
        levels = mounts[controller].levels(groups[controller])
        if not levels or not levels[0].is_dir():
            return None
        # Of version 1, CPU time may be counted in another tree, where the process may be in another group.
        counts = "cpuacct" in mounts and groups.get("cpuacct") == groups[controller]
        counted = mounts["cpuacct"].levels(groups["cpuacct"]) if version_1 and counts else levels
        found = [
            QuotaGroup(folder, version_1=version_1, counts=usage if counts or not version_1 else None)
            for folder, usage in zip(levels, counted, strict=False)
        ]
        return [group for group in found if group.read() is not None]

    def _groups(self) -> dict[str, str]:
        """Path by controller, `""` of version 2 (cgroups(7))."""
        lines = _text(self._file).splitlines()
        found = {}
        for line in lines:
            _, controllers, path = line.split(":", 2)
            found.update(dict.fromkeys(controllers.split(","), path))
        return found

    def _mounts(self) -> dict[str, _Hierarchy]:
        """By controller, `""` of version 2 (proc_pid_mountinfo(5))."""
        found: dict[str, _Hierarchy] = {}
        for line in _text(self._root / "proc/self/mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.partition(" ")
            if kind in ("cgroup", "cgroup2"):
                root, folder = (field.replace("\\040", " ") for field in before.split()[3:5])
                at = _Hierarchy(self._root / folder.lstrip("/"), root)
                names = [""] if kind == "cgroup2" else options.rpartition(" ")[2].split(",")
                for name in names:
                    found.setdefault(name, at)
        return found


@dataclass(frozen=True)
class QuotaGroup:
    """A group, by its folder; `counts` is where its CPU time is counted."""

    folder: Path
    version_1: bool
    counts: Path | None

    def read(self) -> Quota | None:
        """What it may use, and has used; None where it has no quota."""
        if self.version_1:
            quota, period = (_text(self.folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        else:
            quota, _, period = _text(self.folder / "cpu.max").strip().partition(" ")
        counts = dict(line.split(maxsplit=1) for line in _text(self.folder / "cpu.stat").splitlines() if " " in line)
        if not quota.isdecimal() or not period.isdecimal() or "nr_throttled" not in counts:
            return None  # `max`, -1, or the topmost group
        throttled_ns = int(counts.get("throttled_time") or 1000 * int(counts.get("throttled_usec", 0)))
        return Quota(
            1000 * int(quota), 1000 * int(period), throttled_ns, int(counts["nr_throttled"]), self._cpu_time_ns(counts)
        )

    def _cpu_time_ns(self, counts: dict[str, str]) -> int | None:
        if not self.version_1:
            return 1000 * int(counts["usage_usec"]) if "usage_usec" in counts else None
        text = "" if self.counts is None else _text(self.counts / "cpuacct.usage").strip()
        return int(text) if text else None


class _Followed:
    """The quotas of one process, added up since it is followed: of several groups, the one that held it up most counts.

    A group that stands still because one above it does is not counted twice.
    """

    def __init__(self, process: FollowedProcess, root: Path) -> None:
        self.subject = process.subject
        self._groups = ControlGroups(process.pid, root)
        self._find_at_ns = 0
        self._before: dict[QuotaGroup, Quota] = {}
        self._limited: Sequence[QuotaGroup] | None = []
        self._throttled_ns = self._throttled_periods = self._cpu_time_ns = 0

    def read(self, tape: Tape) -> None:
        """Write what changed since the last reading; nothing between two searches where there is no quota."""
        is_search = tape.now_ns() >= self._find_at_ns
        is_known = self._groups.is_running() if is_search else bool(self._limited)
        if not is_known:
            return
        with tape.reading():
            if is_search:
                self._limited = self._groups.limited()
                self._find_at_ns = tape.now_ns() + FIND_EVERY_NS
            quotas = {group: quota for group in self._limited or () if (quota := group.read()) is not None}
        if self._limited is None:
            for metric in ("quota_cpus", "quota_throttled_ns", "quota_throttled_periods"):
                tape.fail(self.subject, metric, NO_GROUPS)
            return
        knows_time = self._add(quotas)
        tape.write(self.subject, "quota_throttled_ns", self._throttled_ns)
        tape.write(self.subject, "quota_throttled_periods", self._throttled_periods)
        if quotas and knows_time:
            tape.write(self.subject, "quota_cpu_time_ns", self._cpu_time_ns)
        if is_search and not quotas:
            tape.fail(self.subject, "quota_cpus", NO_QUOTA)
        elif is_search:
            least = min(quotas.values(), key=lambda one: one.quota_ns / one.period_ns)
            tape.write(self.subject, "quota_cpus", least.quota_ns / least.period_ns)
            tape.write(self.subject, "quota_period_ns", least.period_ns)
        self._before = quotas

    def _add(self, quotas: dict[QuotaGroup, Quota]) -> bool:
        """Add what changed; whether CPU time is counted."""
        changes = [(self._before[group], now) for group, now in quotas.items() if group in self._before]
        if not changes:
            return bool(quotas) and all(quota.cpu_time_ns is not None for quota in quotas.values())
        before, now = max(changes, key=lambda one: one[1].throttled_ns - one[0].throttled_ns)
        self._throttled_ns += now.throttled_ns - before.throttled_ns
        self._throttled_periods += now.throttled_periods - before.throttled_periods
        if now.cpu_time_ns is None or before.cpu_time_ns is None:
            return False
        self._cpu_time_ns += now.cpu_time_ns - before.cpu_time_ns
        return True


class CpuQuotaSource(Source):
    """CPU quotas of each measured process.

    Args:
        root: of the file system, for tests.
    """

    name = "quotas"
    metrics = (
        Metric("quota_cpus", "CPUs that the quota of its control groups is worth", "process", computed=True),
        Metric("quota_period_ns", "for which the quota is given each time", "process", computed=True),
        Metric(
            "quota_throttled_ns", "time that the quota held its control group up, of each CPU that it would have used",
            "process", counter=True, computed=True,
        ),
        Metric(
            "quota_throttled_periods", "periods in which the quota was used up", "process", counter=True, computed=True
        ),
        Metric(
            "quota_cpu_time_ns", "CPU time of the control group that has the quota", "process", counter=True,
            computed=True,
        ),
    )  # fmt: skip
    period_limits_ns = (PERIOD_NS, PERIOD_NS)

    def __init__(self, context: SamplerContext, root: Path = Path("/")) -> None:
        super().__init__(context)
        self._root = root
        self._followed: tuple[_Followed, ...] = ()

    def follow(self, process: FollowedProcess) -> None:
        """Read this process's too from now on."""
        self._followed = (*self._followed, _Followed(process, self._root))

    def read(self, tape: Tape) -> None:
        """One reading of each process that still runs."""
        for followed in self._followed:
            followed.read(tape)


def _text(path: Path) -> str:
    """A small file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
