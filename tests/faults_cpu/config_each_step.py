"""The generation's configuration is parsed again from its JSON text in every decoding step.

mlc-ai/mlc-llm#2150 (20 ms a step, for 6 ms of the model). Annotated from outside: config_each_step.toml. Mended: once.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

MENDED = "--mended" in sys.argv
BATCHES, TOKENS = 20, 40
TEXT = json.dumps({"temperature": 0.8, "bias": {f"token {i}": [i, i / 3, str(i)] for i in range(700)}})
parsed = 0


def read_config() -> dict[str, Any]:
    global parsed
    parsed += 1
    config: dict[str, Any] = json.loads(TEXT)  # fault
    return config


config_once = functools.cache(read_config)


def sample(step: int) -> float:
    config = config_once() if MENDED else read_config()
    return step / float(config["temperature"])


def decode(step: int) -> int:
    return sum(value * step for value in range(4000))


def generate(tokens: int) -> list[float]:
    return [sample(decode(step)) for step in range(tokens)]


def main() -> None:
    for _ in range(BATCHES):
        generate(TOKENS)


if __name__ == "__main__":
    main()
    print(parsed, "configurations parsed")
