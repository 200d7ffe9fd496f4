"""Results as the published schemas (docs/schema) describe them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from pydantic import BaseModel

SCHEMAS = Path(__file__).parents[1] / "docs" / "schema"


@cache
def _validator(schema: str) -> Any:
    """Of a schema, which is checked once itself: that takes longer than most documents."""
    content = json.loads((SCHEMAS / f"{schema}.schema.json").read_text("utf-8"))
    made = jsonschema.validators.validator_for(content)
    made.check_schema(content)
    return made(content)


def valid(schema: str, content: Any, part: str = "") -> Any:
    """The content as JSON has it. Raises `jsonschema.ValidationError` where the schema does not allow it.

    Args:
        schema: the name of its file, without the ending.
        content: a file, a model, or what JSON holds.
        part: what the content is of the schema, as `$defs/Diagnosis`; empty: all of it.
    """
    if isinstance(content, Path):
        content = json.loads(content.read_text("utf-8"))
    elif isinstance(content, BaseModel):
        content = json.loads(content.model_dump_json())
    validator = _validator(schema)
    for error in validator.descend(content, {"$ref": f"#/{part}"} if part else validator.schema):
        raise error
    return content
