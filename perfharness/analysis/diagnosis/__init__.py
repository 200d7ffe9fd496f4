"""Find what limits each stage of a process, out of fourteen causes.

`find_evidence` reads one pass of a process, `diagnose` judges one or two passes, `advise` ranks what to do first.
"""

from perfharness.analysis.diagnosis.advice import Advice as Advice
from perfharness.analysis.diagnosis.advice import RunDiagnosis as RunDiagnosis
from perfharness.analysis.diagnosis.advice import StageAgreement as StageAgreement
from perfharness.analysis.diagnosis.advice import advise as advise
from perfharness.analysis.diagnosis.advice import agreement as agreement
from perfharness.analysis.diagnosis.advice import unexplained as unexplained
from perfharness.analysis.diagnosis.cpu_supply import CpuSupply as CpuSupply
from perfharness.analysis.diagnosis.diagnose import ALONE as ALONE
from perfharness.analysis.diagnosis.diagnose import Pass as Pass
from perfharness.analysis.diagnosis.diagnose import PassEvidence as PassEvidence
from perfharness.analysis.diagnosis.diagnose import diagnose as diagnose
from perfharness.analysis.diagnosis.diagnose import find_evidence as find_evidence
from perfharness.analysis.diagnosis.findings import diagnosis_findings as diagnosis_findings
from perfharness.analysis.diagnosis.gpu.workload import OtherProcesses as OtherProcesses
from perfharness.analysis.diagnosis.ranks import with_rank_delays as with_rank_delays
