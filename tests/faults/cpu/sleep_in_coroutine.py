"""An asynchronous client sleeps as a synchronous one does while the model is loading, and stops all other requests.
Mended: asyncio.sleep, through which the others go on.
"""

import asyncio
import time

from tests.faults.frame import MENDED, count, run_async

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


def tokenize(index):
    return [hash(f"{index}-{position}") % 32003 for position in range(9000)]


def decode(answers):
    return "".join(sorted("".join(answers) * 200))


asyncio.run(run_async(30, REQUESTS, tokenize=tokenize, infer=infer, decode=decode))
