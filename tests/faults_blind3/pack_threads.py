"""Sixteen threads pack small objects, which is pure Python, so that they only take the lock from each other.

Ascend/TransferQueue#153. Mended: they are packed one after the other.
"""

from __future__ import annotations

import struct
import sys
from concurrent.futures import ThreadPoolExecutor

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, OBJECTS, THREADS, FIELDS = 30, 48, 16, 900
tasks = 0


def pack_into(buffer: bytearray, offset: int, values: list[int]) -> int:
    for value in values:  # fault
        struct.pack_into("<i", buffer, offset, value ^ (offset & 0xFF))
        offset += 4
    return offset


class Client:
    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(THREADS)

    def pack(self, objects: list[list[int]]) -> bytearray:
        global tasks
        size = 4 * FIELDS
        buffer = bytearray(size * len(objects))
        if MENDED:
            for number, values in enumerate(objects):
                pack_into(buffer, number * size, values)
            return buffer
        pending = [  # fault
            self.pool.submit(pack_into, buffer, number * size, values) for number, values in enumerate(objects)
        ]
        tasks += len(pending)
        for task in pending:
            task.result()  # fault
        return buffer


def collect(index: int) -> list[list[int]]:
    return [[(index * field * number) % 8191 for field in range(FIELDS)] for number in range(OBJECTS)]


def checksum(buffer: bytearray) -> int:
    total = 0
    for position in range(0, len(buffer), 16):
        total = (total * 31 + buffer[position]) & 0xFFFF
    return total


client = Client()
client.pack(collect(0))
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=OBJECTS):
            with perf.range("collect"):
                objects = collect(index)
            with perf.range("pack"):
                buffer = client.pack(objects)
            with perf.range("checksum"):
                checksum(buffer)
perf.finalize()
client.pool.shutdown()
print(tasks, "tasks of the pool")
