"""A coroutine sleeps with `time.sleep`, which stops all others. Mended: asyncio.sleep."""

import asyncio
import time

from tests.faults.frame import MENDED, count, hashing, run_async

REQUESTS, RETRY_S = 5, 0.009


async def ask(client, asked):
    """The endpoint says that it is loading to the first question of each client."""
    await asyncio.sleep(0)
    if client in asked:
        return f"answer for {client}"
    asked.add(client)
    return None


async def infer_one(client, asked):
    while (answer := await ask(client, asked)) is None:
        if MENDED:
            await asyncio.sleep(RETRY_S)
        else:
            count()
            time.sleep(RETRY_S)  # fault
    return answer


async def infer(_):
    asked = set()
    return await asyncio.gather(*(infer_one(client, asked) for client in range(REQUESTS)))


def decode(answers):
    return "".join(sorted("".join(answers) * 200))


asyncio.run(run_async(30, REQUESTS, tokenize=hashing(9000), infer=infer, decode=decode))
