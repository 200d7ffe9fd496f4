"""Settings of a model as options of a verb: each is typed once, in its model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel

from perfharness_launcher.plan.options import Option, options_of

Verb = Callable[..., None]


def with_settings(
    *models: type[BaseModel], only: Collection[str] | None = None, rare: Collection[str] = ()
) -> Callable[[Verb], Verb]:
    """Give a verb an option for each setting of the models, in place of its `**settings`.

    Args:
        only: names of fields; None: all of them.
        rare: names of those that this verb leaves out of `--help`, besides those of the models.
    """
    return with_parameters(
        [
            _parameter(name, replace(option, rare=True) if name in rare else option, model)
            for model in models
            for name, option in options_of(model).items()
            if only is None or name in only
        ]
    )


def with_parameters(made: Sequence[inspect.Parameter]) -> Callable[[Verb], Verb]:
    """Give a verb these parameters, in place of its `**`; they follow its positional ones."""

    def decorate(verb: Verb) -> Verb:
        own = [
            parameter
            for parameter in inspect.signature(verb, eval_str=True).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        parameters = sorted([*made, *own], key=lambda parameter: parameter.kind)
        verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        verb.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return verb

    return decorate


def _parameter(name: str, option: Option, model: type[BaseModel]) -> inspect.Parameter:
    field = model.model_fields[name]
    kind, default = field.annotation, field.get_default(call_default_factory=True)
    if get_origin(kind) is Literal:
        choices = Enum(name, {choice: choice for choice in get_args(kind)}, type=str)  # type: ignore[misc]
        kind, default = choices, choices(default)
    elif get_origin(kind) is tuple:  # joined by commas
        kind, default = str | None, None
    flags = (*option.flags[:-1], "/".join(filter(None, (option.flags[-1], option.negative))))
    info = typer.Option(
        *flags,
        help=option.help,
        metavar=option.metavar,
        rich_help_panel=option.panel,
        hidden=option.rare,
        show_default=option.show_default if default is not None else False,
        case_sensitive=False,
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def given(context: typer.Context, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that stand on the command line."""
    return {
        name: value.value if isinstance(value, Enum) else value
        for name, value in settings.items()
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }
