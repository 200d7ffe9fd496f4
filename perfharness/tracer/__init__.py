"""The embedded tracer: records ranges and GPU work inside the measured process, where there is no nsys.

`python -m perfharness.tracer SCRIPT ARGUMENTS…` runs the script as Python itself would and writes `trace.sqlite`.
"""
