"""A ranking service asks the feature store for one item after the other, a round trip each. Mended: for all at once."""

import asyncio
import json
import time

from tests.faults.frame import MENDED, count, network, run, serve

ITEMS = 16


def answer(connection):
    for line in connection.makefile():
        time.sleep(0.003)
        connection.sendall(json.dumps({key: [len(key), 0.5, 1.5] for key in json.loads(line)}).encode() + b"\n")


async def get(keys):
    count()
    writer.write(json.dumps(keys).encode() + b"\n")
    await writer.drain()
    return json.loads(await reader.readline())


async def one_by_one(keys):
    found = {}
    for key in keys:  # fault
        found.update(await get([key]))
    return found


def candidates(user):
    scored = sorted(((user + 1) * item % 7919, item) for item in range(20_000))
    return [f"item-{item}" for _, item in scored[:ITEMS]]


def features(keys):
    if MENDED:
        return loop.run_until_complete(get(keys))
    return loop.run_until_complete(one_by_one(keys))  # fault


loop = asyncio.new_event_loop()
reader, writer = loop.run_until_complete(asyncio.open_connection(*serve(answer)))
run(50, ITEMS, candidates=candidates, features=features, rank=network(128, 256, 40))
writer.close()
