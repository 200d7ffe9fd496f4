"""Choose the tracer: nsys where a working one records this interpreter's nvtx, else the embedded one."""

from __future__ import annotations

from dataclasses import dataclass

from perfharness.errors import ToolNotFoundError, UsageError
from perfharness.model.environment import LOGGING_TRACERS
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import TracerKind, TracerRecord
from perfharness.model.version import VERSION
from perfharness_launcher.machine import MachineFacts
from perfharness_launcher.nsys import (
    INSTALL_NSYS,
    NSYS_RECORDS,
    NVTX_PINNED,
    NsysInstall,
    Pair,
    dotted,
    pair,
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
        ToolNotFoundError: there is no working nsys, and it was asked for.
    """
    if options.tracer == "none":
        return TracerChoice(TracerRecord(kind="none", reason="asked for"))
    if options.tracer in LOGGING_TRACERS:
        return _embedded(options, facts, "asked for")
    unusable = [problem for install in facts.nsys for problem in install.problems]
    usable = [install for install in facts.nsys if install.usable]
    if options.nsys is not None and not usable:
        raise UsageError(f"--nsys {options.nsys} cannot be used: {'; '.join(unusable)}")
    if not _is_utf8(options):
        if options.tracer == "nsys":
            raise UsageError(f"--tracer nsys: {NOT_UTF8}; rename the script, or use --tracer embedded")
        usable, unusable = [], [*unusable, NOT_UTF8]
    for install in usable:
        too_old, nvtx = too_old_for_driver(install, facts.cuda_driver), _nvtx_finding(install, facts)
        misses_nvtx = nvtx is not None and nvtx.severity is Severity.WARNING
        if options.tracer == "auto" and (too_old or misses_nvtx):
            unusable.append(too_old or (nvtx.message if nvtx else ""))
            continue
        newer = f"a newer Nsight Systems (CUDA {dotted(facts.cuda_driver or ())}), or --tracer embedded"
        driver = Finding("nsys-too-old-for-driver", Severity.WARNING, too_old, newer) if too_old else None
        reason = "asked for" if options.tracer == "nsys" else f"newest that works, from {install.source}"
        record = TracerRecord(kind="nsys", version=install.version_text, path=str(install.path), reason=reason)
        return TracerChoice(record, install, tuple(filter(None, (nvtx, driver))))
    if options.tracer == "nsys":
        raise ToolNotFoundError(
            f"--tracer nsys: {'; '.join(unusable) or 'no nsys was found'}; install one without root by"
            f" `{INSTALL_NSYS}`, or name one with --nsys"
        )
    return _embedded(options, facts, "; ".join(unusable) or "no nsys was found")


def _is_utf8(options: LaunchOptions) -> bool:
    try:
        "".join((options.script, *options.script_arguments)).encode()
    except UnicodeEncodeError:
        return False
    return True


def _embedded(options: LaunchOptions, facts: MachineFacts, reason: str) -> TracerChoice:
    if (python := facts.program.python) is not None:  # in other programs, each Python that they start is traced
        if python.ignored_hook:
            raise UsageError(f"the embedded tracer: {python.ignored_hook}, or use --tracer nsys")
        if not facts.interpreter.has_perfharness and facts.interpreter.problem is None:
            raise UsageError(
                f"the embedded tracer needs perfharness in {facts.interpreter.executable}; install it there, or use"
                " --tracer nsys"
            )
    kind: TracerKind = "ranges" if options.tracer == "ranges" else "embedded"
    return TracerChoice(TracerRecord(kind=kind, version=VERSION, reason=reason))


def _nvtx_finding(install: NsysInstall, facts: MachineFacts) -> Finding | None:
    nvtx = facts.interpreter.nvtx
    judged = pair(install, nvtx)
    if facts.program.script is None or judged is Pair.GOOD:
        return None
    return Finding(
        "nvtx-too-new-for-nsys",
        Severity.WARNING if judged is Pair.BAD else Severity.NOTE,
        f"nsys {install.version_text} {'records' if judged is Pair.BAD else 'may record'} no ranges of nvtx {nvtx}",
        f"pip install nvtx=={NVTX_PINNED}, or nsys {dotted(NSYS_RECORDS)} or newer, or --tracer embedded",
    )
