"""Annotation from the outside: functions named in a file become ranges as they are imported, in the measured process.

`python -m perfharness.annotate SCRIPT ARGUMENTS…` runs the script as Python itself would, under the embedded tracer
where the environment requests it. Standard library and the recorder only, imported before any function is annotated.
"""
