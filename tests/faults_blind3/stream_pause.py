"""The endpoint that streams tokens pauses for 10 ms after each of them, to be kind to the event loop.

Blaizzy/mlx-vlm#808. Mended: it yields to the event loop without a pause.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, TOKENS, PAUSE_S = 30, 6, 0.01
pauses = 0


def next_token(state: int) -> int:
    for step in range(4000):
        state = (state * 1103515245 + 12345 + step) & 0x7FFFFFFF
    return state


async def stream(prompt: int) -> AsyncIterator[str]:
    global pauses
    token = prompt
    for _ in range(TOKENS):
        token = next_token(token)
        yield f"data: {token % 32003}\n\n"
        if MENDED:
            await asyncio.sleep(0)
        else:
            pauses += 1
            await asyncio.sleep(PAUSE_S)  # fault


def prefill(index: int) -> int:
    return sum(hash(f"{index}/{position}") % 97 for position in range(9000))


def log(chunks: list[str]) -> int:
    return len(sorted("".join(chunks) * 300))


async def answer(prompt: int) -> list[str]:
    return [chunk async for chunk in stream(prompt)]  # fault


async def main() -> None:
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=TOKENS):
                with perf.range("prefill"):
                    prompt = prefill(index)
                with perf.range("generate"):
                    chunks = await answer(prompt)
                with perf.range("log"):
                    log(chunks)


perf = PerfRecorder("faults")
asyncio.run(main())
perf.finalize()
print(pauses, "pauses")
