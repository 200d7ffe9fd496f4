"""Compare the slowest batches with a typical one: a breakdown of the difference into parts."""

from perfharness.analysis.slowest.find import ProcessLoop as ProcessLoop
from perfharness.analysis.slowest.find import Requests as Requests
from perfharness.analysis.slowest.find import pool_loops as pool_loops
from perfharness.analysis.slowest.find import slowest_of_process as slowest_of_process
from perfharness.analysis.slowest.results import Slowest as Slowest
from perfharness.analysis.slowest.results import SlowLoop as SlowLoop
from perfharness.analysis.slowest.results import SlowRequest as SlowRequest
