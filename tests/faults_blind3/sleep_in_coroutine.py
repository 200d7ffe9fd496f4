"""An asynchronous client sleeps as a synchronous one does while the model is loading, and stops all other requests.

huggingface/huggingface_hub#2672, hotosm/tasking-manager#7305. Mended: asyncio.sleep, through which the others go on.
"""

from __future__ import annotations

import asyncio
import sys
import time

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, REQUESTS, RETRY_S = 30, 5, 0.009
blocking_sleeps = 0


class Endpoint:
    """Says that it is loading to the first question of each client."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    async def ask(self, client: int) -> str | None:
        await asyncio.sleep(0)
        if client in self.asked:
            return f"answer for {client}"
        self.asked.add(client)
        return None


async def infer(endpoint: Endpoint, client: int) -> str:
    global blocking_sleeps
    while True:
        answer = await endpoint.ask(client)
        if answer is not None:
            return answer
        if MENDED:
            await asyncio.sleep(RETRY_S)
        else:
            blocking_sleeps += 1
            time.sleep(RETRY_S)  # fault


def tokenize(index: int) -> list[int]:
    return [hash(f"{index}-{position}") % 32003 for position in range(9000)]


def decode(answers: list[str]) -> str:
    text = "".join(answers) * 200
    return "".join(sorted(text))


async def main() -> None:
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=REQUESTS):
                with perf.range("tokenize"):
                    tokenize(index)
                with perf.range("infer"):
                    endpoint = Endpoint()
                    answers = await asyncio.gather(*(infer(endpoint, client) for client in range(REQUESTS)))
                with perf.range("decode"):
                    decode(list(answers))


perf = PerfRecorder("faults")
asyncio.run(main())
perf.finalize()
print(blocking_sleeps, "sleeps on the event loop's thread")
