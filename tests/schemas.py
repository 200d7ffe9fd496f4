"""Results as their JSON Schemas (`perfharness export --schema KIND`) describe them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from pydantic import BaseModel

from perfharness.render.schemas import json_schema

CHROME_TRACE = Path(__file__).parent / "data" / "chrome_trace.schema.json"


@cache
def _validator(kind: str) -> Any:
    """Check the schema itself only once: that takes longer than most documents."""
    content = json.loads(CHROME_TRACE.read_text("utf-8")) if kind == "chrome_trace" else json_schema(kind)
    made = jsonschema.validators.validator_for(content)
    made.check_schema(content)
    return made(content)


def valid(kind: str, content: Any, part: str = "") -> Any:
    """The content as JSON has it. Raises `jsonschema.ValidationError` where the schema does not allow it.

    Args:
        kind: of `export --schema`, or `chrome_trace`.
        content: a file, a model, or what JSON holds.
        part: what the content is of the schema, as `$defs/Diagnosis`; empty: all of it.
    """
    if isinstance(content, Path):
        content = json.loads(content.read_text("utf-8"))
    elif isinstance(content, BaseModel):
        content = json.loads(content.model_dump_json())
    validator = _validator(kind)
    for error in validator.descend(content, {"$ref": f"#/{part}"} if part else validator.schema):
        raise error
    return content
