"""Which tracer to take, and why: nsys where a working one records this interpreter's nvtx, else the embedded one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from perfharness.errors import PerfHarnessError, ToolNotFoundError, UsageError
from perfharness.model.environment import LOGGING_TRACERS
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import TracerKind, TracerRecord
from perfharness.model.version import VERSION
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
from perfharness_launcher.plan.machine import MachineFacts
from perfharness_launcher.plan.options import LaunchOptions
from perfharness_launcher.plan.program import Program


@dataclass(frozen=True)
class TracerDecision:
    """The tracer of a launch; a problem stops the launch."""

    record: TracerRecord
    nsys: NsysInstall | None = None
    findings: tuple[Finding, ...] = ()
    problem: PerfHarnessError | None = None


def choose_tracer(options: LaunchOptions, facts: MachineFacts) -> TracerDecision:
    """The tracer asked for, or the best one where it is `auto`."""
    if options.tracer == "none":
        return TracerDecision(TracerRecord(kind="none", reason="asked for"))
    if options.tracer in LOGGING_TRACERS:
        return _embedded(options, facts, "asked for", "ranges" if options.tracer == "ranges" else "embedded")
    unusable = [problem for install in facts.nsys for problem in install.problems]
    usable = [install for install in facts.nsys if install.usable]
    if options.nsys is not None and not usable:
        return _refused(UsageError(f"--nsys {options.nsys} cannot be used: {'; '.join(unusable)}"))
    if not _is_utf8(options):
        why = "nsys records no command line with bytes that are no UTF-8"
        if options.tracer == "nsys":
            return _refused(UsageError(f"--tracer nsys: {why}; rename the script, or take --tracer embedded"))
        usable, unusable = [], [*unusable, why]
    if options.tracer == "nsys":
        return _nsys_asked_for(options, facts, usable, unusable)
    return _automatic(options, facts, usable, unusable)


def _is_utf8(options: LaunchOptions) -> bool:
    try:
        "".join((options.script, *options.script_arguments)).encode()
    except UnicodeEncodeError:
        return False
    return True


def _nsys_asked_for(
    options: LaunchOptions, facts: MachineFacts, usable: Sequence[NsysInstall], unusable: Sequence[str]
) -> TracerDecision:
    if not usable:
        found = "; ".join(unusable) if unusable else "none was found"
        return _refused(
            ToolNotFoundError(
                f"--tracer nsys needs Nsight Systems, but {found}; `{INSTALL_NSYS}` gets one without root,"
                " --nsys names one, and `perfharness doctor` lists where it was looked for"
            )
        )
    install = usable[0]
    findings = [finding for finding in (_pair_finding(install, facts), _driver_finding(install, facts)) if finding]
    return TracerDecision(_nsys_record(install, "asked for"), install, tuple(findings))


def _automatic(
    options: LaunchOptions, facts: MachineFacts, usable: Sequence[NsysInstall], unusable: Sequence[str]
) -> TracerDecision:
    reasons = list(unusable)
    for install in usable:
        reason = too_old_for_driver(install, facts.cuda_driver) or _deaf(install, facts)
        if reason is None:
            finding = _pair_finding(install, facts)
            return TracerDecision(
                _nsys_record(install, f"newest one that works, from {install.source}"),
                install,
                (finding,) if finding else (),
            )
        reasons.append(reason)
    why = "; ".join(reasons) if reasons else "no nsys was found"
    return _embedded(options, facts, why)


def _embedded(
    options: LaunchOptions, facts: MachineFacts, reason: str, kind: TracerKind = "embedded"
) -> TracerDecision:
    if not facts.program.is_python:  # the tracer follows each Python that it starts
        return TracerDecision(TracerRecord(kind=kind, version=VERSION, reason=reason))
    if ignored := ignored_hook(facts.program):
        return _refused(UsageError(f"the embedded tracer: {ignored}, or take --tracer nsys"))
    if not facts.interpreter.has_perfharness and facts.interpreter.problem is None:
        return _refused(
            UsageError(
                f"the embedded tracer runs inside {facts.interpreter.executable}, which cannot import perfharness;"
                " install perfharness there or take --tracer nsys"
            )
        )
    return TracerDecision(TracerRecord(kind=kind, version=VERSION, reason=reason))


def ignored_hook(program: Program) -> str | None:
    """Why the start-up hook is not imported; None: it is, as far as is known."""
    options = [word for word in program.interpreter_options if re.fullmatch("-[bBdEiIOPqRsSuv]*[EIS][a-zA-Z]*", word)]
    return f"Python with {options[0]} does not import the start-up hook; leave {options[0]} out" if options else None


def _refused(problem: PerfHarnessError) -> TracerDecision:
    return TracerDecision(TracerRecord(kind="none"), problem=problem)


def _nsys_record(install: NsysInstall, reason: str) -> TracerRecord:
    return TracerRecord(kind="nsys", version=install.version_text, path=str(install.path), reason=reason)


def _deaf(install: NsysInstall, facts: MachineFacts) -> str | None:
    nvtx = facts.interpreter.nvtx
    if not facts.program.script.is_python or pair(install, nvtx) is not Pair.BAD:
        return None
    return f"nsys {install.version_text} records no range of nvtx {nvtx} (newer than {NVTX_PINNED})"


def _pair_finding(install: NsysInstall, facts: MachineFacts) -> Finding | None:
    nvtx = facts.interpreter.nvtx
    judged = pair(install, nvtx)
    if not facts.program.script.is_python or judged is Pair.GOOD:
        return None
    return Finding(
        "nvtx-too-new-for-nsys",
        Severity.WARNING if judged is Pair.BAD else Severity.NOTE,
        f"nsys {install.version_text} {'records' if judged is Pair.BAD else 'may record'} no range of nvtx {nvtx}",
        f"pip install nvtx=={NVTX_PINNED}, or nsys {dotted(NSYS_RECORDS)} or newer, or --tracer embedded",
    )


def _driver_finding(install: NsysInstall, facts: MachineFacts) -> Finding | None:
    reason = too_old_for_driver(install, facts.cuda_driver)
    if reason is None:
        return None
    return Finding(
        "nsys-too-old-for-driver",
        Severity.WARNING,
        reason,
        f"a newer Nsight Systems (CUDA {dotted(facts.cuda_driver or ())}), or --tracer embedded",
    )
