"""The sampling parameters of each request are copied deeply although nothing changes them.

vllm-project/vllm#31041. Annotated from outside: deepcopy_params.toml. Mended: the requests share them.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

MENDED = "--mended" in sys.argv
BATCHES, REQUESTS = 24, 60
PARAMS: dict[str, Any] = {
    "temperature": 0.7,
    "stop": [f"stop {i}" for i in range(60)],
    "logit_bias": {i: [i / 7, {"weight": i}] for i in range(120)},
}
copies = 0


def prepare(count: int) -> list[dict[str, Any]]:
    global copies
    prepared = []
    for _ in range(count):
        if MENDED:
            prepared.append(PARAMS)
        else:
            prepared.append(copy.deepcopy(PARAMS))  # fault
            copies += 1
    return prepared


def schedule(requests: list[dict[str, Any]]) -> list[float]:
    return [sum(entry[0] for entry in request["logit_bias"].values()) for request in requests for _ in range(20)]


def step(count: int) -> None:
    schedule(prepare(count))


def serve() -> None:
    for _ in range(BATCHES):
        step(REQUESTS)


if __name__ == "__main__":
    serve()
    print(copies, "deep copies")
