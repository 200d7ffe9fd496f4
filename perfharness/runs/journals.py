"""What stands next to a trace: the journals, of what recorders counted, and what the host probe sampled."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from perfharness.analysis.journal_check import check_journals
from perfharness.files import read_regular, reason_of
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import JOURNAL_NAME, JOURNALS_OF_CHILDREN, RecorderJournal
from perfharness.model.trace import Trace
from perfharness.trace.host_samples import RecordedProbe, read_host_probe

TRACE_NAME = "trace.sqlite"
"""What a launch calls the trace of a process; journals next to a file of another name may belong to another trace."""


@dataclass(frozen=True)
class Journals:
    """The journals of one trace. `main` is that of the measured process, `children` those of processes below it."""

    main: RecorderJournal | None = None
    children: tuple[RecorderJournal, ...] = ()
    unreadable: list[Finding] = field(default_factory=list)

    @property
    def parents(self) -> dict[int, int]:
        """The process tree, as far as the journals know it."""
        return {one.pid: one.parent_pid for one in self._all() if one.parent_pid is not None}

    def findings(self, trace: Trace) -> list[Finding]:
        """What the trace lacks, and which journals it could not be checked against."""
        journals = self._all()
        return [*self.unreadable, *(check_journals(journals, trace) if journals else [])]

    def _all(self) -> list[RecorderJournal]:
        return [*([self.main] if self.main is not None else []), *self.children]


def read_journals(folder: Path) -> Journals:
    """Every journal in a process's folder; none is no fault: of a script without a recorder there is none."""
    read = {path.name: _read(path) for path in [folder / JOURNAL_NAME, *sorted(folder.glob(JOURNALS_OF_CHILDREN))]}
    found = {name: one for name, one in read.items() if isinstance(one, RecorderJournal)}
    main = found.pop(JOURNAL_NAME, None)
    return Journals(main, tuple(found.values()), [one for one in read.values() if isinstance(one, Finding)])


def journals_of(trace: Path) -> Journals:
    """The journals that belong to a trace file: those in the folder of a process of a run."""
    return read_journals(trace.parent) if trace.name == TRACE_NAME else Journals()


def host_probe_of(trace: Path) -> RecordedProbe | None:
    """What was sampled of the process of a trace file, in the folder of a process of a run; None: nothing."""
    return read_host_probe(trace.parent) if trace.name == TRACE_NAME else None


def _read(path: Path) -> RecorderJournal | Finding | None:
    try:
        return RecorderJournal.model_validate_json(read_regular(path, follow=False))
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = reason_of(error)
    except ValidationError as error:
        reason = f"{error}".splitlines()[0]
    return Finding(
        "recorder-counts-unreadable",
        Severity.WARNING,
        f"{path.name} cannot be read ({reason}), so the trace was not checked against its counts.",
    )
