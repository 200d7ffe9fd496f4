"""A thread decodes for the GPU's thread and takes longer. Mended: items are decoded before."""

import hashlib
import queue
import threading

import torch

from tests.faults.frame import MENDED, batches, pick, products, result, stage

BATCHES = 30
ENCODED = bytes(pick(30_000_000, 100_000))
items = queue.Queue()
multiply = products(20)


def decode_all():
    for _ in range(BATCHES):
        with stage("decode"):
            items.put(hashlib.sha256(ENCODED).digest()[0])  # fault


producer = threading.Thread(target=decode_all, name="producer")
producer.start()
if MENDED:
    producer.join()
with torch.inference_mode():
    for _ in batches(BATCHES):
        with stage("take"):
            item = items.get()  # fault
        with stage("model"):
            result(multiply(item))
producer.join()
