"""Several machines, one run: an engine starts `perfharness launch --nodes` once on each; the launches meet.

Node 0 listens (`meeting`), and every node connects (`member`), node 0 too. Their processes start together, node 0's
clock is the common one, and node 0 joins what all have measured into one run folder (`join`). `ray` is an engine: it
starts these launches on the nodes of a Ray cluster.
"""

from perfharness.cluster.clock import measure_offset as measure_offset
from perfharness.cluster.node import find_node as find_node
