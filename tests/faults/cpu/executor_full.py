"""A server tokenizes on the default executor, whose threads are full of uploads. Mended: two executors."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from tests.faults.frame import MENDED, batches, count, network, stage

UPLOADS = 2
classify = network(32, 256, 40)


def tokenize(text):
    return [hash(word) % 50021 for word in text.split()]


def upload(tokens):
    time.sleep(0.025)  # fault
    return len(tokens)


async def main():
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2, "default"))
    for_uploads = ThreadPoolExecutor(8, "uploads") if MENDED else None
    uploads = []
    for index in batches(60):
        with stage("read"):
            text = " ".join(f"token{(index * 31 + position) % 4999}" for position in range(12000))
        with stage("tokenize"):
            count(not MENDED and sum(not one.done() for one in uploads) >= UPLOADS)
            tokens = await asyncio.to_thread(tokenize, text)  # fault
        with stage("classify"):
            classify(tokens)
        uploads.extend(loop.run_in_executor(for_uploads, upload, tokens) for _ in range(UPLOADS))
    await asyncio.gather(*uploads)


asyncio.run(main())
