"""Names of settings: command-line option, key in a file, help text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, BeforeValidator, Field


@dataclass(frozen=True)
class Option:
    """Metadata of a model field."""

    flags: tuple[str, ...]
    """On the command line; the last one, without dashes, is the key in a file. Without dashes, in files only. Empty
    for the name of the field."""
    panel: str  # group in the help; empty for other options
    help: str
    metavar: str | None = None
    negative: str | None = None  # flag that disables it
    show_default: bool | str = True

    @property
    def key(self) -> str:
        """Key in a file."""
        return self.flags[-1].removeprefix("--")

    @property
    def has_flag(self) -> bool:
        """Whether the command line accepts it."""
        return self.flags[-1].startswith("-")


def option(
    text: str,
    panel: str = "",
    metavar: str | None = None,
    *,
    flags: str = "",
    default: Any = None,
    negative: str | None = None,
    show_default: bool | str = True,
    parse: Callable[[Any], Any] | None = None,
    key: str | None = None,
    **limits: Any,
) -> Any:
    """Make a model field that is an option.

    Args:
        text: for the help.
        flags: separated by blanks; empty for the name of the field.
        default: value, function that returns it, or ... for a required option.
        parse: converts a given value. Raises `ValueError`.
        key: name in `model_dump(by_alias=True)`, or None for that of the field.
        limits: `ge`, `gt`, `lt` or `le`, as in pydantic.
    """
    given: dict[str, Any] = {"default_factory": default} if callable(default) else {"default": default}
    field: Any = Field(serialization_alias=key, **given, **limits)
    field.metadata.append(Option(tuple(flags.split()), panel, text, metavar, negative, show_default))
    if parse is not None:
        field.metadata.append(BeforeValidator(parse))
    return field


def options_of(model: type[BaseModel]) -> dict[str, Option]:
    """Options of a model, by field."""
    return {
        name: replace(option, flags=option.flags or (f"--{name.replace('_', '-')}",))
        for name, field in model.model_fields.items()
        for option in field.metadata
        if isinstance(option, Option)
    }
