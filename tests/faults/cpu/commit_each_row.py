"""Every prediction is a transaction of its own in SQLite, which waits for the disk. Mended: one transaction for all."""

import sqlite3
import tempfile

import numpy as np

from tests.faults.frame import MENDED, count, network, run

ITEMS = 8


def prepare(_):
    image = np.random.default_rng(4).normal(size=(ITEMS * 16, 256)).astype(np.float32)
    return (image - image.mean()) / image.std()


def store(scores):
    for item in range(ITEMS):
        add(item, f"label {item}", float(scores[item].max()))


def add(item, label, score):
    connection.execute("INSERT INTO predictions VALUES (?, ?, ?)", (item, label, score))
    saved()


def saved():
    if not MENDED:
        connection.commit()  # fault
        count()


with tempfile.TemporaryDirectory() as folder, sqlite3.connect(f"{folder}/predictions.db") as connection:
    connection.execute("CREATE TABLE predictions (item INTEGER, label TEXT, score REAL)")
    connection.commit()
    run(50, ITEMS, prepare=prepare, classify=network(ITEMS * 16, 256, 40), store=store)
