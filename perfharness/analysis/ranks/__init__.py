"""Ranks that work together: their collectives, who waits for whom, and in which stage a delay arose.

`rank_work` takes from one rank's trace what the comparison needs, so that the trace can be released; `compare_ranks`
puts those of all ranks on one clock.
"""
