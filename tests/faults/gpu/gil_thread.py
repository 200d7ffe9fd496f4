"""A thread that parses logs takes the interpreter lock from the one that launches. Mended: no such thread."""

import threading

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run

SIDE = pick(4096, 16)
RECORD = "2026-01-01 00:00:00 INFO request=17 tokens=512 state=done"
stop = threading.Event()


def parse_forever():  # fault
    while not stop.is_set():
        fields = {}
        for _ in range(2_000):
            for field in RECORD.split(" "):
                name, _, value = field.partition("=")
                fields[name] = value


def model(_):
    hidden = inputs
    for _ in range(8):  # few: each call gives the lock away, and the other thread may keep it for 5 ms
        hidden = torch.relu(hidden @ weight)
    return hidden


weight = torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16) / SIDE**0.5
inputs = torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
if not MENDED:
    threading.Thread(target=parse_forever, name="log-parser", daemon=True).start()
with torch.inference_mode():
    run(30, SIDE, model=model, results=result)
stop.set()
