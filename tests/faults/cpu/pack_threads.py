"""Sixteen threads pack objects in pure Python, one at a time. Mended: one thread."""

import struct
from concurrent.futures import ThreadPoolExecutor

from tests.faults.frame import MENDED, count, run

OBJECTS, FIELDS = 48, 900
SIZE = 4 * FIELDS
pool = ThreadPoolExecutor(16)


def pack_into(buffer, offset, values):
    for value in values:  # fault
        struct.pack_into("<i", buffer, offset, value ^ (offset & 0xFF))
        offset += 4
    return offset


def pack(objects):
    buffer = bytearray(SIZE * len(objects))
    if MENDED:
        for number, values in enumerate(objects):
            pack_into(buffer, number * SIZE, values)
        return buffer
    pending = [pool.submit(pack_into, buffer, number * SIZE, values) for number, values in enumerate(objects)]  # fault
    count(len(pending))
    for task in pending:
        task.result()  # fault
    return buffer


def collect(index):
    return [[(index * field * number) % 8191 for field in range(FIELDS)] for number in range(OBJECTS)]


def checksum(buffer):
    total = 0
    for position in range(0, len(buffer), 16):
        total = (total * 31 + buffer[position]) & 0xFFFF
    return total


pack(collect(0))
run(30, OBJECTS, collect=collect, pack=pack, checksum=checksum)
