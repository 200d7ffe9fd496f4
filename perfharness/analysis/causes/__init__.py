"""What limits each stage of a process: fourteen causes. `diagnose` is one process, `advise` what to do first."""

from perfharness.analysis.causes.advice import Advice as Advice
from perfharness.analysis.causes.advice import advise as advise
from perfharness.analysis.causes.advice import unexplained as unexplained
from perfharness.analysis.causes.cpu_supply import CpuSupply as CpuSupply
from perfharness.analysis.causes.diagnose import Pass as Pass
from perfharness.analysis.causes.diagnose import diagnose as diagnose
from perfharness.analysis.causes.ranks import with_rank_delays as with_rank_delays
from perfharness.analysis.causes.results import Causes as Causes
from perfharness.analysis.causes.results import Code as Code
from perfharness.analysis.causes.results import StageCauses as StageCauses
