"""Eight requests are gathered, but the limiter around each of them lets one through at a time.

mjpieters/aiolimiter#69, python/cpython#115201. Mended: it lets eight.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, QUESTIONS, ANSWER_S = 40, 8, 0.006
had_to_wait = 0


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    line = await reader.readline()
    await asyncio.sleep(ANSWER_S)
    writer.write(b"%d\n" % (len(line) % 97))
    await writer.drain()
    writer.close()


async def run_server(ready: Connection) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def serve(ready: Connection) -> None:
    asyncio.run(run_server(ready))


class Judge:
    """A model elsewhere that judges answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.limiter = asyncio.Semaphore(QUESTIONS if MENDED else 1)

    async def ask(self, question: str) -> int:
        global had_to_wait
        had_to_wait += self.limiter.locked()
        async with self.limiter:  # fault
            return await self.post(question)

    async def post(self, question: str) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(question.encode() + b"\n")
        verdict = int(await reader.readline())
        writer.close()
        return verdict

    async def ask_all(self, questions: list[str]) -> list[int]:
        return await asyncio.gather(*map(self.ask, questions))  # fault


def write_questions(index: int) -> list[str]:
    return [" ".join(f"w{index * position % 911}" for position in range(1500)) for _ in range(QUESTIONS)]


def summarize(verdicts: list[int]) -> float:
    points = np.resize(np.array(verdicts, np.float32), (128, 128))
    for _ in range(60):
        points = np.tanh(points @ points.T / 1e4)
    return float(points.sum())


async def pipeline(port: int) -> None:
    judge = Judge(port)
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=QUESTIONS):
                with perf.range("questions"):
                    questions = write_questions(index)
                with perf.range("judge"):
                    verdicts = await judge.ask_all(questions)
                with perf.range("summarize"):
                    summarize(verdicts)
    perf.finalize()


def main() -> None:
    context = multiprocessing.get_context("fork")
    ready, sender = context.Pipe()
    server = context.Process(target=serve, args=(sender,), daemon=True)
    server.start()
    asyncio.run(pipeline(ready.recv()))
    server.terminate()
    server.join()
    print(had_to_wait, "requests had to wait for the limiter")


if __name__ == "__main__":
    main()
