"""Each token of a generator is fetched on another thread. Mended: 64 tokens a hop."""

import asyncio
import itertools

from tests.faults.frame import MENDED, count, run_async, svd

TOKENS = 256
sent = []


def generate(prompt):
    for position in range(TOKENS):
        yield f"t{prompt * position % 31}"


async def iterate_in_threads(tokens):
    each = 64 if MENDED else 1
    while chunk := await asyncio.to_thread(lambda: list(itertools.islice(tokens, each))):  # fault
        count()
        for token in chunk:
            yield token


async def send(token):
    sent.append(token)


async def stream(prompt):
    async for token in iterate_in_threads(generate(prompt)):  # fault
        await send(token)


def read_prompt(index):
    return sum((index * position) % 11 for position in range(40000)) % 1009


asyncio.run(run_async(30, TOKENS, prompt=read_prompt, stream=stream, moderate=svd(80)))
