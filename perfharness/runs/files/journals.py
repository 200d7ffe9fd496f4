"""What stands next to a trace: the journals, of what recorders counted, and what the host probe sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pydantic import ValidationError

from perfharness.analysis.stages.checks import check_journals
from perfharness.files import read_regular, reason_of
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import JOURNAL_NAME, JOURNALS_OF_CHILDREN, RecorderJournal
from perfharness.model.manifest import ProcessRecord
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.model.trace import Trace
from perfharness.trace.host_samples import RecordedProbe, read_host_probe


@dataclass(frozen=True)
class Journals:
    """The journals of one trace.

    `main` is that of the measured process; `children` are those of others in a bare trace, and in runs of earlier
    versions. `tree`: of all processes that its launched process started.
    """

    main: RecorderJournal | None = None
    children: tuple[RecorderJournal, ...] = ()
    unreadable: list[Finding] = field(default_factory=list)
    tree: tuple[RecorderJournal, ...] = ()
    of_child: bool = False
    """Whether `main` is of a process that the launched one started."""

    @property
    def parents(self) -> Mapping[int, int]:
        """The process tree, as far as the journals know it."""
        links: dict[int, int] = {}
        for one in [*self._all(), *self.tree]:
            chain = [one.pid, *one.above]
            links |= dict(pairwise(chain))
        return links

    def findings(self, trace: Trace) -> list[Finding]:
        """What the trace lacks, and which journals it could not be checked against."""
        journals = self._all()
        return [*self.unreadable, *(check_journals(journals, trace, of_child=self.of_child) if journals else [])]

    def _all(self) -> list[RecorderJournal]:
        return [*([self.main] if self.main is not None else []), *self.children]


def read_journals(folder: Path) -> Journals:
    """Every journal in a process's folder; none is no fault: of a script without a recorder there is none."""
    read = {path.name: _read(path) for path in [folder / JOURNAL_NAME, *sorted(folder.glob(JOURNALS_OF_CHILDREN))]}
    found = {name: one for name, one in read.items() if isinstance(one, RecorderJournal)}
    main = found.pop(JOURNAL_NAME, None)
    return Journals(main, tuple(found.values()), [one for one in read.values() if isinstance(one, Finding)])


def journals_of_process(run_dir: Path, process: ProcessRecord) -> Journals:
    """The journals of a measured process of a run: its own, and for the process tree those of the others."""
    launched = run_dir / process.launched_folder
    if process.measured is None:
        return read_journals(launched) if process.trace == TRACE_NAME else Journals()
    own = _read(run_dir / process.folder / JOURNAL_NAME)
    if isinstance(own, RecorderJournal) and own.pid != process.pid:
        own = None  # of the launched process, which measured nothing, or of one that was not its own
    others = [
        launched / JOURNAL_NAME,
        *sorted(launched.glob(JOURNALS_OF_CHILDREN)),
        *launched.glob(f"*/{JOURNAL_NAME}"),
    ]
    tree = (one for path in others if isinstance(one := _read(path), RecorderJournal))
    return Journals(
        own if isinstance(own, RecorderJournal) else None,
        unreadable=[own] if isinstance(own, Finding) else [],
        tree=tuple(tree),
        of_child=process.folder != process.launched_folder,
    )


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
