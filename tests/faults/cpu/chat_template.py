"""The template of a chat is compiled again for every request. Mended: compiled once."""

import jinja2

from tests.faults.frame import MENDED, count, network, run

REQUESTS = 8
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


def compile_template():
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, cache_size=0)
    return environment.from_string(TEMPLATE)  # fault


def apply_chat_template(messages):
    if MENDED:
        template = kept
    else:
        template = compile_template()
        count()
    return template.render(messages=messages, add_generation_prompt=True)


def conversation(number):
    turns = [
        {"role": "user", "content": f"question {number}"},
        {"role": "tool", "content": "search", "arguments": {"query": "x", "limit": number}},
        {"role": "assistant", "content": f"answer {number}"},
    ]
    return [{"role": "system", "content": "You are helpful."}, *turns * 10]


def render(_):
    return [apply_chat_template(conversation(number)) for number in range(REQUESTS)]


def encode(prompts):
    return [[sum(map(ord, piece)) % 32000 for piece in prompt.split("<|")] for prompt in prompts]


kept = compile_template()
run(60, REQUESTS, render=render, encode=encode, infer=network(32, 256, 20 * REQUESTS))
