"""Options of a verb, made from the fields of pydantic models."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, get_origin

import typer
from pydantic import BaseModel, BeforeValidator, ValidationError

from perfharness.cli.support.options import problem_text
from perfharness.errors import UsageError
from perfharness.model.settings import Option, options_of

Verb = Callable[..., None]

HELP_ALL = "help_all"


def with_settings(
    *models: type[BaseModel], only: Collection[str] | None = None, shown: Collection[str] | None = None
) -> Callable[[Verb], Verb]:
    """Give a verb one option per setting.

    A parameter whose type is a model becomes the options of its fields. Those of `models` are passed as `**settings`;
    see `given`.

    Args:
        only: fields of `models`, or None for all.
        shown: options in `--help`, or None for all; `--help-all` shows the others too.
    """

    def decorate(verb: Verb) -> Verb:
        own: list[inspect.Parameter] = []
        made: dict[str, type[BaseModel]] = {}
        for parameter in inspect.signature(verb, eval_str=True).parameters.values():
            if inspect.isclass(parameter.annotation) and issubclass(parameter.annotation, BaseModel):
                made[parameter.name] = parameter.annotation
            elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                own.append(parameter)
        own += [one for model in models for one in _parameters(model, only, shown)]
        own += [one for model in made.values() for one in _parameters(model, None, shown)]
        if shown is not None:
            own.append(inspect.Parameter(HELP_ALL, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll))

        @functools.wraps(verb)
        def called(**values: Any) -> None:
            values.pop(HELP_ALL, None)
            for name, model in made.items():
                values[name] = _model_of(model, {field: values.pop(field) for field in _fields(model)})
            verb(**values)

        own.sort(key=lambda parameter: parameter.kind)
        called.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
        return called

    return decorate


def given(context: typer.Context, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that were given on the command line."""
    return {
        name: value
        for name, value in settings.items()
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }


def _print_whole_help(context: typer.Context, asked: bool) -> None:
    if asked:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", help="Show all options.", is_eager=True, hidden=True, callback=_print_whole_help)
]


def _fields(model: type[BaseModel]) -> dict[str, Option]:
    return {name: option for name, option in options_of(model).items() if option.has_flag}


def _parameters(
    model: type[BaseModel], only: Collection[str] | None, shown: Collection[str] | None
) -> Iterator[inspect.Parameter]:
    for name, option in _fields(model).items():
        if only is None or name in only:
            yield _parameter(name, option, model, hidden=shown is not None and name not in shown)


def _parameter(name: str, option: Option, model: type[BaseModel], *, hidden: bool) -> inspect.Parameter:
    field = model.model_fields[name]
    kind: Any = field.annotation
    default = ... if field.is_required() else field.get_default(call_default_factory=True)
    if any(isinstance(one, BeforeValidator) for one in field.metadata) or get_origin(kind) is tuple:
        kind, default = str | None, None  # parsed by the model
    if isinstance(default, float) and default.is_integer():
        default = int(default)  # the help shows 300, not 300.0
    info = typer.Option(
        *option.flags[:-1],
        "/".join(filter(None, (option.flags[-1], option.negative))),
        help=option.help,
        metavar=option.metavar,
        rich_help_panel=option.panel or None,
        hidden=hidden,
        show_default=option.show_default
        if default not in (None, ..., []) or isinstance(option.show_default, str)
        else False,
        case_sensitive=False,
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _model_of(model: type[BaseModel], values: Mapping[str, Any]) -> BaseModel:
    try:
        return model(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        options = options_of(model)
        problems = error.errors(include_url=False)
        raise UsageError(
            "\n".join(f"{options[str(one['loc'][0])].flags[-1]} {problem_text(one)}" for one in problems)
        ) from None
