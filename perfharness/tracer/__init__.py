"""The embedded tracer: records ranges and GPU work inside the measured process, where there is no nsys.

`start` starts it; `output.complete_traces` makes `trace.sqlite` of what the processes left.
"""

from perfharness.tracer.session import start

__all__ = ["start"]
