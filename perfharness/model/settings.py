"""Names of settings: command-line option, key in a file, help text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field


@dataclass(frozen=True)
class Option:
    """Metadata of a model field."""

    flags: tuple[str, ...]
    """On the command line; the last one, without dashes, is the key in a file. Without dashes, in files only."""
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


def setting(default: Any, flags: str, panel: str, text: str, **more: Any) -> Any:
    """Field of a settings model with its `Option`.

    Args:
        default: or a function that returns it.
        flags: separated by spaces, and by `/` from the negative one.
    """
    names, _, negative = flags.partition("/")
    field: Any = Field(default_factory=default) if callable(default) else Field(default)
    field.metadata.append(Option(tuple(names.split()), panel, text, negative=negative or None, **more))
    return field


def options_of(model: type[BaseModel]) -> dict[str, Option]:
    """Options of a model, by field."""
    return {
        name: option
        for name, field in model.model_fields.items()
        for option in field.metadata
        if isinstance(option, Option)
    }
