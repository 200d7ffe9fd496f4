"""What a process's threads do, sampled from beside it: Python stacks, open stages, CPU time, waits.

A process that is explained hands a sampler, a child of its own, a read-only view of its memory and the layout of its
interpreter; the sampler never takes the interpreter lock (docs/internals/host-probe.md). Standard library only.
"""
