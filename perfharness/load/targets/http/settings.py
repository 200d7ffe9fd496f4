"""How an HTTP target is asked: the table `[target]` of a profile."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from perfharness.distribution import install_command
from perfharness.errors import ToolNotFoundError, UsageError
from perfharness.files import read_toml
from perfharness.model.base import Settings
from perfharness.model.checks import refuse_booleans
from perfharness.secrets import is_secret

Kind = Literal["plain", "openai"]

TABLE = "target"
OPENAI_PATHS = ("/chat/completions", "/completions")
VARIABLE = re.compile(r"\$\{(\w+)\}")


class _Settings(
    Settings, alias_generator=lambda name: name.removesuffix("_s").replace("_", "-"), populate_by_name=True
):
    @model_validator(mode="before")
    @classmethod
    def _checked(cls, values: Any) -> Any:
        if isinstance(values, dict):
            refuse_booleans(
                values, {key: field for name, field in cls.model_fields.items() for key in (name, field.alias)}
            )
        return values


class HttpInput(_Settings):
    """What is sent; of an entry of the mix, members that are left out are those of the target.

    Args:
        body: a file that is sent as it is.
        text: the same, written out; of OpenAI-style servers the prompt.
        max_tokens: OpenAI.
    """

    body: Path | None = None
    text: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_body(self) -> Self:
        if self.body is not None and self.text is not None:
            raise ValueError("body and text both say what is sent; leave one away")
        return self


class HttpSettings(HttpInput):
    """An HTTP endpoint and what it is sent.

    Args:
        url: of the requests.
        protocol: None: by the path of the URL.
        method: of plain requests; None: POST where there is a body, else GET.
        headers: by name; `${NAME}` in a value stands for an environment variable, so that no file holds a secret.
        headers_file: a header a line, as `Name: value`.
        inputs: what is sent for the entries of the mix, by their names.
        model: OpenAI: its name; None: the first that the server lists.
        stream: OpenAI: ask for a stream, which shows when each token came.
        done: OpenAI: a stream ends with [DONE]; without it an answer with a finish_reason is whole too.
        parameters: OpenAI: more members of the JSON that is sent.
        expect_status: of a right answer; None: 2xx.
        expect_text: occurs in a right answer; of OpenAI-style servers in the generated text.
        ready: answers well when a server that was started is ready; a URL or a path; None: whatever answers at the URL
            itself.
        ready_timeout_s: how long that may take.
        connect_timeout_s: for a connection to be there; the time-out of a whole request is the profile's.
        read_timeout_s: between two parts of an answer.
        keep_alive_s: an idle connection is closed then, before the server does (uvicorn: after 5 s).
        ca_file: certificates that sign the server's, in PEM; None: those that this machine trusts.
        verify_tls: whether the server's certificate is checked.
    """

    url: str
    protocol: Kind | None = None
    method: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    headers_file: Path | None = None
    inputs: dict[str, HttpInput] = Field(default_factory=dict)
    model: str | None = None
    stream: bool = True
    done: bool = True
    parameters: dict[str, Any] = Field(default_factory=dict)
    expect_status: int | None = Field(default=None, ge=100, le=599)
    expect_text: str | None = None
    ready: str | None = None
    ready_timeout_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    connect_timeout_s: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    read_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    keep_alive_s: float = Field(default=4.0, gt=0, allow_inf_nan=False)
    ca_file: Path | None = None
    verify_tls: bool = True

    def input_of(self, name: str | None) -> HttpInput:
        """What is sent for an entry of the mix; None: there is no mix."""
        own = self.inputs.get(name, HttpInput()) if name is not None else HttpInput()
        given = own.model_dump(exclude_none=True)
        names = set(HttpInput.model_fields) - ({"body", "text"} if {"body", "text"} & given.keys() else set())
        return HttpInput(**{**{name: getattr(self, name) for name in names}, **given})

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError as error:
            raise ValueError(f"is no URL: {error}") from error
        if parts.scheme not in ("http", "https") or not named:
            raise ValueError("must be http://HOST[:PORT]/PATH or https://…")
        if parts.password is not None:
            raise ValueError("has a password, which the run would store; send it in a header of headers-file")
        return url

    @field_validator("headers")
    @classmethod
    def _without_secrets(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if is_secret(name) and not VARIABLE.search(value):
                raise ValueError(f"{name} holds a secret, which the run would store; write ${{NAME}} for a variable")
        return headers

    @property
    def kind(self) -> Kind:
        """The protocol, by the path of the URL where it is not given."""
        if self.protocol is not None:
            return self.protocol
        path = urlsplit(self.url).path.rstrip("/")
        return "openai" if path.endswith(OPENAI_PATHS) else "plain"

    def with_inputs(self, files: Mapping[str, Path]) -> HttpSettings:
        """The same with files that the mix names, each sent as it is.

        Raises `UsageError` where a file is no request.
        """
        for name, path in files.items():
            if name in self.inputs:
                raise UsageError(f"the mix gives {name} the input {path}, and so does [target] inputs; leave one away")
            if self.kind == "openai" and path.suffix != ".json":
                raise UsageError(f"the input {path} of {name}: an OpenAI request is a .json; text in [target] a prompt")
        added = {name: HttpInput(body=path) for name, path in files.items()}
        return self.model_copy(update={"inputs": {**self.inputs, **added}})

    def all_headers(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The headers that are sent, those of the file included. Raises `UsageError`."""
        found = {} if self.headers_file is None else _read_headers(self.headers_file)
        found |= self.headers
        return {name: _filled(name, value, environ) for name, value in found.items()}

    def sets(self, header: str) -> bool:
        """Whether a header is given."""
        return header.lower() in {name.lower() for name in self.all_headers()}


def is_url(target: str) -> bool:
    """Whether a target is an endpoint."""
    return target.startswith(("http://", "https://"))


def http_settings(url: str, file: Path | None = None, given: Mapping[str, Any] | None = None) -> HttpSettings:
    """The settings of an endpoint: those given, over those of the table `[target]` of a profile.

    Args:
        given: fields of `HttpSettings`; None is not given.

    Raises:
        UsageError: a setting does not exist, has a wrong value, or contradicts another.
    """
    table = {} if file is None else read_toml(file, "--profile").get(TABLE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [{TABLE}] is a table of settings, not {table!r}")
    where = f"{file} [{TABLE}]" if table else "the target"
    values = {name: value for name, value in (given or {}).items() if value is not None}
    folder = Path() if file is None else file.parent
    names = {field.alias: name for name, field in HttpSettings.model_fields.items()}
    of_table = {names.get(key, key): value for key, value in table.items()}
    try:
        found = HttpSettings.model_validate({**of_table, **values, "url": url})
    except ValidationError as error:
        raise UsageError("\n".join(f"{where}: {_sentence(problem)}" for problem in error.errors())) from None
    of_file = {name: _in_folder(value, folder) for name, value in found if name not in values}
    return found.model_copy(update=of_file)


def check_http(settings: HttpSettings) -> None:
    """Raises `UsageError` for what is wrong with settings, and `ToolNotFoundError` without the client."""
    if importlib.util.find_spec("aiohttp") is None:
        raise ToolNotFoundError(f"load over HTTP needs aiohttp, which is not installed; {install_command('load')}")
    settings.all_headers()


def _in_folder(value: Any, folder: Path) -> Any:
    """A path of a file is relative to it."""
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, HttpInput):
        return value.model_copy(update={name: _in_folder(one, folder) for name, one in value})
    if isinstance(value, dict):
        return {name: _in_folder(one, folder) for name, one in value.items()}
    return value


def _sentence(problem: Any) -> str:
    place = " ".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"the setting {place} does not exist; docs/guides/load.md lists them"
    text = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    shown = f" = {problem['input']!r}" if problem["type"] != "value_error" else ""
    return f"{place}{shown} {text}"


def _read_headers(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"headers_file {path} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not colon or not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name):
            raise UsageError(f"headers_file {path}: line {number} is no header; write `Name: value`")
        found[name] = value.strip()
    return found


def _filled(name: str, value: str, environ: Mapping[str, str]) -> str:
    missing = sorted({each for each in VARIABLE.findall(value) if each not in environ})
    if missing:
        raise UsageError(f"the header {name} needs the environment variable {missing[0]}, which is not set")
    return VARIABLE.sub(lambda found: environ[found[1]], value)
