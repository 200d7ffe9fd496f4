"""An endpoint pauses for 10 ms after each token. Mended: it yields without a pause."""

import asyncio

from tests.faults.frame import MENDED, count, hashing, run_async

TOKENS = 6


def next_token(state):
    for step in range(4000):
        state = (state * 1103515245 + 12345 + step) & 0x7FFFFFFF
    return state


async def stream(token):
    for _ in range(TOKENS):
        token = next_token(token)
        yield f"data: {token % 32003}\n\n"
        if MENDED:
            await asyncio.sleep(0)
        else:
            count()
            await asyncio.sleep(0.01)  # fault


async def generate(prompt):
    return [chunk async for chunk in stream(prompt)]  # fault


def log(chunks):
    return len(sorted("".join(chunks) * 300))


asyncio.run(run_async(30, TOKENS, prefill=hashing(9000), generate=generate, log=log))
