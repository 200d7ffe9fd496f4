"""A client makes a pydantic adapter for each answer, which builds the validator again. Mended: one."""

import functools
import json
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter

from tests.faults.frame import MENDED, count, network, run


class Text(BaseModel):
    kind: Literal["text"]
    text: str


class Image(BaseModel):
    kind: Literal["image"]
    url: str
    width: int = 0


class Call(BaseModel):
    kind: Literal["call"]
    name: str
    arguments: dict[str, int]


HINT = dict[str, list[Annotated[Text | Image | Call, Field(discriminator="kind")]]]


def adapter():
    count()
    return TypeAdapter(HINT)  # fault


kept = functools.cache(adapter)


def parse(payload):
    if MENDED:
        return kept().validate_json(payload)["parts"]
    answer = adapter()  # fault
    return answer.validate_json(payload)["parts"]


def receive(number):
    parts = [{"kind": "text", "text": f"token {number} {position}"} for position in range(30)]
    parts.append({"kind": "call", "name": "search", "arguments": {"page": number}})
    return json.dumps({"parts": parts})


run(700, receive=receive, parse=parse, embed=network(16, 128, 6))
