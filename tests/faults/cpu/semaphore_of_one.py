"""Eight requests are gathered, but the limiter around each lets one through at a time. Mended: it lets eight."""

import asyncio
import time

import numpy as np

from tests.faults.frame import MENDED, count, run_async, serve

QUESTIONS = 8
limiter = asyncio.Semaphore(QUESTIONS if MENDED else 1)


def answer(connection):
    line = connection.recv(1 << 16)
    time.sleep(0.006)
    connection.sendall(b"%d\n" % (len(line) % 97))
    connection.close()


async def ask(question):
    count(limiter.locked())
    async with limiter:  # fault
        return await post(question)


async def post(question):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(question.encode() + b"\n")
    verdict = int(await reader.readline())
    writer.close()
    return verdict


async def judge(questions):
    return await asyncio.gather(*map(ask, questions))  # fault


def write_questions(index):
    return [" ".join(f"w{index * position % 911}" for position in range(1500)) for _ in range(QUESTIONS)]


def summarize(verdicts):
    points = np.resize(np.array(verdicts, np.float32), (128, 128))
    for _ in range(60):
        points = np.tanh(points @ points.T / 1e4)


address = serve(answer)
asyncio.run(run_async(40, QUESTIONS, questions=write_questions, judge=judge, summarize=summarize))
