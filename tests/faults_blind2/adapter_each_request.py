"""A client validates each answer with a pydantic adapter that it makes for it, which builds the validator again.

PrefectHQ/prefect#15047, temporalio/sdk-python#1695. Mended: one adapter a type.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Annotated, Any, Literal

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
REQUESTS = 700
built = 0


class Text(BaseModel):
    kind: Literal["text"]
    text: str


class Image(BaseModel):
    kind: Literal["image"]
    url: str
    width: int = 0


class Call(BaseModel):
    kind: Literal["call"]
    name: str
    arguments: dict[str, int]


Part = Annotated[Text | Image | Call, Field(discriminator="kind")]


def adapter(hint: Any) -> TypeAdapter[Any]:
    global built
    built += 1
    return TypeAdapter(hint)  # fault


kept = functools.cache(adapter)


def parse(payload: str) -> list[Any]:
    hint = dict[str, list[Part]]
    if MENDED:
        return list(kept(hint).validate_json(payload)["parts"])
    answer = adapter(hint)  # fault
    return list(answer.validate_json(payload)["parts"])


def receive(number: int) -> str:
    parts: list[dict[str, Any]] = [{"kind": "text", "text": f"token {number} {position}"} for position in range(30)]
    parts.append({"kind": "call", "name": "search", "arguments": {"page": number}})
    return json.dumps({"parts": parts})


def embed(parts: list[Any]) -> float:
    states = np.full((16, 128), len(parts), np.float32) / 100
    for _ in range(6):
        states = np.tanh(states @ WEIGHTS)
    return float(states.sum())


WEIGHTS = np.random.default_rng(1).normal(0, 0.1, (128, 128)).astype(np.float32)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for number in range(REQUESTS):
        with perf.batch(number, total_items=1):
            with perf.range("receive"):
                payload = receive(number)
            with perf.range("parse"):
                parts = parse(payload)
            with perf.range("embed"):
                embed(parts)
perf.finalize()
print(built, "adapters built")
