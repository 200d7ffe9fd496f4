"""The template of a chat is compiled again for every request.

home-assistant/core#175399, lablup/mlxcel#1235. Mended: compiled once.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import jinja2
import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, REQUESTS = 60, 8
RNG = np.random.default_rng(20)
compiled = 0
TEMPLATE = """
{%- macro arguments(tool) -%}
{%- for name, value in tool.arguments.items() %}{{ name }}={{ value | tojson }}{% if not loop.last %}, {% endif %}
{%- endfor -%}
{%- endmacro -%}
{%- for message in messages -%}
  {%- if message.role == "system" -%}<|system|>{{ message.content | trim }}<|end|>
  {%- elif message.role == "user" -%}<|user|>{{ message.content | trim }}<|end|>
  {%- elif message.role == "tool" -%}<|tool|>{{ message.content }}({{ arguments(message) }})<|end|>
  {%- elif message.role == "assistant" and message.content is string -%}<|assistant|>{{ message.content }}<|end|>
  {%- elif message.role == "assistant" -%}
    {%- for part in message.content -%}
      {%- if part.type == "text" %}{{ part.text }}{% elif part.type == "image" %}<|image|>{% endif -%}
    {%- endfor -%}
  {%- else -%}{{ "unknown role " ~ message.role }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""


class Tokenizer:
    """Chats to tokens."""

    def __init__(self) -> None:
        self.template: Any = None

    def environment(self) -> jinja2.Environment:
        return jinja2.Environment(trim_blocks=True, lstrip_blocks=True, cache_size=0)

    def compile(self) -> Any:
        global compiled
        compiled += 1
        return self.environment().from_string(TEMPLATE)  # fault

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> str:
        if not MENDED:
            self.template = self.compile()
        return str(self.template.render(messages=messages, add_generation_prompt=True))

    def encode(self, text: str) -> list[int]:
        return [sum(map(ord, piece)) % 32000 for piece in text.split("<|")]


def conversation(number: int) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": f"question {number}"},
        {"role": "tool", "content": "search", "arguments": {"query": "x", "limit": number}},
        {"role": "assistant", "content": f"answer {number}"},
    ]
    return [{"role": "system", "content": "You are helpful."}, *turns * 10]


def infer(tokens: list[int], weights: np.ndarray) -> np.ndarray:
    states = np.resize(np.array(tokens, np.float32) / 32000, (32, 256))
    for _ in range(20):
        states = np.tanh(states @ weights)
    return states


tokenizer, weights = Tokenizer(), RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
if MENDED:
    tokenizer.template = tokenizer.compile()
    compiled = 0
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=REQUESTS):
            with perf.range("render"):
                prompts = [tokenizer.apply_chat_template(conversation(number)) for number in range(REQUESTS)]
            with perf.range("encode"):
                tokens = [tokenizer.encode(prompt) for prompt in prompts]
            with perf.range("infer"):
                answers = [infer(one, weights) for one in tokens]
perf.finalize()
print(compiled, "compilations")
