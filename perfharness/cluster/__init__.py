"""One run on several machines: an engine starts `perfharness launch --nodes` once on each.

Node 0 listens (`meeting`) and every node connects (`member`), node 0 too. Processes start together.
Times are converted to node 0's clock, and node 0 joins all results into one run folder (`join`).
`ray` starts these launches on the nodes of a Ray cluster.
"""

from perfharness.cluster.node import find_node as find_node
