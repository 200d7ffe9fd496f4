"""Choose the tracer: nsys if a working one records this interpreter's nvtx, else the embedded one."""

from __future__ import annotations

from dataclasses import dataclass

from perfharness.distribution import VERSION
from perfharness.errors import ToolNotFoundError, UsageError
from perfharness.model.environment import LOGGING_TRACERS
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import TracerKind, TracerRecord
from perfharness_launcher.machine import MachineFacts
from perfharness_launcher.nsys import (
    INSTALL_NSYS,
    NSYS_RECORDS,
    NVTX_PINNED,
    NsysInstall,
    dotted,
    records_nvtx,
    too_old_for_driver,
)
from perfharness_launcher.options import LaunchOptions

NOT_UTF8 = "nsys cannot record a command line that is not UTF-8"


@dataclass(frozen=True)
class TracerChoice:
    """The tracer of a launch."""

    record: TracerRecord
    nsys: NsysInstall | None = None
    findings: tuple[Finding, ...] = ()


def choose_tracer(options: LaunchOptions, facts: MachineFacts) -> TracerChoice:
    """Choose the tracer that was asked for, or the best one.

    Raises:
        UsageError: it cannot be used for this script.
        ToolNotFoundError: nsys was asked for, and there is no working one.
    """
    if options.tracer == "none":
        return TracerChoice(TracerRecord(kind="none", reason="asked for"))
    if options.tracer in LOGGING_TRACERS:
        return _embedded(options, facts, "asked for")
    is_asked = options.tracer == "nsys"
    unusable = [problem for install in facts.nsys for problem in install.problems]
    usable = [install for install in facts.nsys if install.usable]
    if options.nsys is not None and not usable:
        raise UsageError(f"--nsys {options.nsys} cannot be used: {'; '.join(unusable)}")
    try:
        "".join((options.script, *options.script_arguments)).encode()
    except UnicodeEncodeError:
        if is_asked:
            raise UsageError(f"--tracer nsys: {NOT_UTF8}; rename the script, or use --tracer embedded") from None
        usable, unusable = [], [*unusable, NOT_UTF8]
    for install in usable:
        faults = list(filter(None, (_nvtx_finding(install, facts), _driver_finding(install, facts))))
        severe = [finding.message for finding in faults if finding.severity is Severity.WARNING]
        if severe and not is_asked:
            unusable.append(severe[-1])
            continue
        reason = "asked for" if is_asked else f"newest that works, from {install.source}"
        record = TracerRecord(kind="nsys", version=install.version_text, path=str(install.path), reason=reason)
        return TracerChoice(record, install, tuple(faults))
    why = "; ".join(unusable) or "no nsys was found"
    if is_asked:
        raise ToolNotFoundError(f"--tracer nsys: {why}. Install one without root: `{INSTALL_NSYS}`, or use --nsys.")
    return _embedded(options, facts, why)


def _embedded(options: LaunchOptions, facts: MachineFacts, reason: str) -> TracerChoice:
    if (python := facts.program.python) is not None:  # in other programs, each Python that they start is traced
        if python.ignored_hook:
            raise UsageError(f"the embedded tracer: {python.ignored_hook}, or use --tracer nsys")
        if not facts.interpreter.has_perfharness and facts.interpreter.problem is None:
            needs = f"the embedded tracer needs perfharness in {facts.interpreter.executable}"
            raise UsageError(f"{needs}; install it there, or use --tracer nsys")
    kind: TracerKind = "ranges" if options.tracer == "ranges" else "embedded"
    return TracerChoice(TracerRecord(kind=kind, version=VERSION, reason=reason))


def _nvtx_finding(install: NsysInstall, facts: MachineFacts) -> Finding | None:
    nvtx = facts.interpreter.nvtx
    is_recorded = records_nvtx(install, nvtx)
    if facts.program.script is None or is_recorded:
        return None
    return Finding(
        "nvtx-too-new-for-nsys",
        Severity.NOTE if is_recorded is None else Severity.WARNING,
        f"nsys {install.version_text} {'may record' if is_recorded is None else 'records'} no ranges of nvtx {nvtx}",
        f"pip install nvtx=={NVTX_PINNED}, or nsys {dotted(NSYS_RECORDS)} or newer, or --tracer embedded",
    )


def _driver_finding(install: NsysInstall, facts: MachineFacts) -> Finding | None:
    if (problem := too_old_for_driver(install, facts.cuda_driver)) is None:
        return None
    hint = f"Install Nsight Systems for CUDA {dotted(facts.cuda_driver or ())}, or add --tracer embedded."
    return Finding("nsys-too-old-for-driver", Severity.WARNING, problem, hint)
