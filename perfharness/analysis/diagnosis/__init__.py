"""Why a stage takes the time it takes. `diagnose` is the whole; the numbers: docs/guides/diagnosis.md."""

from perfharness.analysis.diagnosis.diagnose import ALONE, diagnose
from perfharness.analysis.diagnosis.pool import pool
from perfharness.analysis.diagnosis.workload import OtherProcesses

__all__ = ["ALONE", "OtherProcesses", "diagnose", "pool"]
