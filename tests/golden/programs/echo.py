"""A target of a load test: an answer takes 3 ms."""

import time


def answer(question: object) -> str:
    time.sleep(0.003)
    return str(question)
