"""The exception tree. Every message names the thing, the cause and the next step.

PerfHarnessError
├── UsageError           the command line or an argument is wrong            exit 2
├── RecorderError        a range is pushed, popped or finalized wrongly
├── TraceError           a trace file cannot be read
│   ├── TraceNotFoundError
│   └── TraceFormatError     truncated, empty, locked, or not a trace
├── LaunchError          a run could not be planned or started               exit 1
│   ├── ToolNotFoundError    nsys, an importer or a library is missing
│   ├── LaunchInterruptedError   interrupted by the user
│   └── NothingRecordedError     no batch ran in a window                 exit 3
├── ClockError           clocks cannot be changed or restored               exit 1
├── BackendError         an inference backend cannot load or run a model      exit 1
│   ├── BackendUnavailableError  not installed, or cannot run here
│   └── OutOfMemoryError         the case exceeds the memory or a limit
├── ResultError          a run folder or a benchmark.json cannot be read
└── HistoryError         the history cannot be opened, read or written
"""

from __future__ import annotations


class PerfHarnessError(Exception):
    """Base of all errors that perfharness raises on purpose."""


class UsageError(PerfHarnessError):
    """The command line or an argument is wrong; nothing was started."""


class RecorderError(PerfHarnessError):
    """A range was pushed, popped or finalized in a way that cannot be measured."""


class TraceError(PerfHarnessError):
    """A trace file cannot be read."""


class TraceNotFoundError(TraceError):
    """The trace file is missing."""


class TraceFormatError(TraceError):
    """The file is truncated, empty, locked, or not a trace."""


class LaunchError(PerfHarnessError):
    """A run could not be planned or started."""


class ToolNotFoundError(LaunchError):
    """A program or library that the run needs is missing."""


class LaunchInterruptedError(LaunchError):
    """The user interrupted a launch before its processes ran or their results were read."""


class NothingRecordedError(LaunchError):
    """No batch ran in a window of a running process."""


class ClockError(PerfHarnessError):
    """The clocks cannot be changed, or their previous state cannot be saved or read."""


class ResultError(PerfHarnessError):
    """A run folder or a result file cannot be read."""


class HistoryError(PerfHarnessError):
    """The history cannot be opened, read or written, or lacks an entry."""


class BackendError(PerfHarnessError):
    """An inference backend cannot load or run a model."""


class BackendUnavailableError(BackendError):
    """The backend is not installed, or cannot run here with these options."""


class OutOfMemoryError(BackendError):
    """The case exceeds the memory of the device or a limit."""
