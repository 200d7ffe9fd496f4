# ruff: noqa
import nvtx, sys

n = int(sys.argv[1])
for b in range(n):
    nvtx.push_range("step")
    nvtx.push_range("infer")
    nvtx.pop_range()
    # forgot one pop
