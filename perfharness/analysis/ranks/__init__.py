"""Compare ranks: `rank_work` keeps what is needed of one rank's trace, `compare_ranks` aligns all on one clock."""

from perfharness.analysis.ranks.compare import compare_ranks as compare_ranks
from perfharness.analysis.ranks.matching import RankClock as RankClock
from perfharness.analysis.ranks.matching import RankInput as RankInput
from perfharness.analysis.ranks.results import Parallel as Parallel
from perfharness.analysis.ranks.results import RankGroup as RankGroup
from perfharness.analysis.ranks.results import RunRanks as RunRanks
from perfharness.analysis.ranks.work import RankWork as RankWork
from perfharness.analysis.ranks.work import rank_work as rank_work
