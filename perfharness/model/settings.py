"""How a setting is spelled: its option on the command line, its name in a file, its help."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel


@dataclass(frozen=True)
class Option:
    """Metadata of a field of a model."""

    flags: tuple[str, ...]
    """On the command line; the last one, without its dashes, is its name in a file. Without dashes: in files only."""
    panel: str  # its group in the help; empty: other options
    help: str
    metavar: str | None = None
    negative: str | None = None  # the flag that switches it off
    show_default: bool | str = True

    @property
    def key(self) -> str:
        """Its name in a file."""
        return self.flags[-1].removeprefix("--")

    @property
    def has_flag(self) -> bool:
        """Whether the command line takes it too."""
        return self.flags[-1].startswith("-")


def options_of(model: type[BaseModel]) -> dict[str, Option]:
    """The options of a model, by field."""
    return {
        name: option
        for name, field in model.model_fields.items()
        for option in field.metadata
        if isinstance(option, Option)
    }
