"""An expression tries every way to split an answer that was cut off. Mended: a search for its end comes first."""

import json
import re

from tests.faults.frame import MENDED, count, network, run

ANSWERS = 4
TOOL_CALL = r"(?:\s*Thought: (.*?)|(.+))\n+Action: ([^\n\(\) ]+).*?\n+Action Input: .*?(\{.*\})"
TEXT = "".join(f"Thought: step {step} of {ANSWERS}\nAction: search\n" for step in range(9))
TEXT += 'Action Input: {"query": "' + "x" * 40  # the model ran into its limit before the closing brace


def extract_tool_use(text):
    count()
    return re.search(TOOL_CALL, text, re.DOTALL)  # fault


def parse_one(text):
    if MENDED and "}" not in text:
        return None
    return extract_tool_use(text)


def parse(_):
    return [parse_one(TEXT) for _ in range(ANSWERS)]


def remember(_):
    return json.dumps([{"role": "assistant", "content": TEXT, "length": len(TEXT)} for _ in range(ANSWERS * 40)])


run(40, ANSWERS, generate=network(32, 256, 40 * ANSWERS), parse=parse, remember=remember)
