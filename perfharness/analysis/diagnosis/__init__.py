"""Why a stage takes the time it takes. `diagnose` is the whole; docs/diagnosis.md says what each number means."""

from perfharness.analysis.diagnosis.diagnose import ALONE, diagnose
from perfharness.analysis.diagnosis.pool import pool
from perfharness.analysis.diagnosis.workload import OtherProcesses

__all__ = ["ALONE", "OtherProcesses", "diagnose", "pool"]
