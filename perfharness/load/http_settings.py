"""Settings of an HTTP target: the table `[target]` of a profile."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from perfharness.distribution import install_command
from perfharness.errors import ToolNotFoundError, UsageError
from perfharness.files import read_toml
from perfharness.load.profile import TARGET_TABLE, Spelled, checked
from perfharness.secrets import is_secret

Kind = Literal["plain", "openai"]

OPENAI_PATHS = ("/chat/completions", "/completions")
VARIABLE = re.compile(r"\$\{(\w+)\}")


class HttpSettings(Spelled):
    """An HTTP endpoint and its requests.

    Args:
        url: URL of the requests.
        protocol: None: from the path of the URL.
        method: method of plain requests; None: POST if there is a body, otherwise GET.
        headers: by name; `${NAME}` in a value is replaced by an environment variable, to keep secrets out of files.
        body: a file that is sent unchanged.
        text: the body as text; the prompt for OpenAI-style servers.
        inputs: files that are sent for the entries of the mix, by entry name.
        model: OpenAI: name of the model; None: the first that the server lists.
        max_tokens: OpenAI.
        stream: OpenAI: request a stream, to get the time of each token.
        parameters: OpenAI: more members of the JSON request.
        expect_status: status of a correct answer; None: 2xx.
        expect_text: text in a correct answer; in the generated text for OpenAI-style servers.
        ready: URL or path that answers successfully when a started server is ready; None: any answer at `url`.
        ready_timeout_s: maximum time until then.
        connect_timeout_s: timeout of a connection; the timeout of a whole request is in the profile.
        read_timeout_s: timeout between two parts of an answer.
        verify_tls: whether to check the server's certificate.
    """

    url: str
    protocol: Kind | None = None
    method: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    body: Path | None = None
    text: str | None = None
    inputs: dict[str, Path] = Field(default_factory=dict)
    model: str | None = None
    max_tokens: int = Field(default=64, ge=1)
    stream: bool = True
    parameters: dict[str, Any] = Field(default_factory=dict)
    expect_status: int | None = Field(default=None, ge=100, le=599)
    expect_text: str | None = None
    ready: str | None = None
    ready_timeout_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    connect_timeout_s: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    read_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    verify_tls: bool = True

    @model_validator(mode="after")
    def _one_body(self) -> Self:
        if self.body is not None and self.text is not None:
            raise ValueError("body and text exclude each other; drop one")
        return self

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError as error:
            raise ValueError(f"is not a URL: {error}") from error
        if parts.scheme not in ("http", "https") or not named:
            raise ValueError("must be http://HOST[:PORT]/PATH or https://…")
        if parts.password is not None:
            raise ValueError("has a password, which the run would store; use a header with ${NAME}")
        return url

    @field_validator("headers")
    @classmethod
    def _without_secrets(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if is_secret(name) and not VARIABLE.search(value):
                raise ValueError(f"{name} holds a secret, which the run would store; use ${{NAME}} for a variable")
        return headers

    @property
    def kind(self) -> Kind:
        """The protocol, from the path of the URL if it is not given."""
        if self.protocol is not None:
            return self.protocol
        path = urlsplit(self.url).path.rstrip("/")
        return "openai" if path.endswith(OPENAI_PATHS) else "plain"

    def to_json(self) -> dict[str, Any]:
        """The settings in the form of a file, without defaults and the URL."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"url"})

    def all_headers(self) -> dict[str, str]:
        """The headers with variables replaced. Raises `UsageError` if a variable is not set."""
        for name, value in self.headers.items():
            if missing := sorted(set(VARIABLE.findall(value)) - os.environ.keys()):
                raise UsageError(f"header {name} needs the environment variable {missing[0]}, which is not set")
        return {name: VARIABLE.sub(lambda found: os.environ[found[1]], value) for name, value in self.headers.items()}


def is_url(target: str) -> bool:
    """Whether a target is an endpoint."""
    return target.startswith(("http://", "https://"))


def http_settings(url: str, file: Path | None = None, given: Mapping[str, Any] | None = None) -> HttpSettings:
    """The settings of an endpoint; those given (and not None) override the table `[target]` of a profile.

    Raises `UsageError` if a setting does not exist, has a wrong value, or contradicts another.
    """
    table = {} if file is None else read_toml(file, "--profile").get(TARGET_TABLE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [{TARGET_TABLE}] must be a table of settings, not {table!r}")
    if file is not None and isinstance(table.get("body"), str):
        table["body"] = str(file.parent / table["body"])
    where = f"{file} [{TARGET_TABLE}]" if table else "the target"
    values = {name: value for name, value in (given or {}).items() if value is not None}
    return checked(HttpSettings, {**table, **values, "url": url}, where)


def check_http(settings: HttpSettings) -> None:
    """Raises `UsageError` for wrong settings, and `ToolNotFoundError` without the client."""
    if importlib.util.find_spec("aiohttp") is None:
        raise ToolNotFoundError(f"load over HTTP needs aiohttp, which is not installed; {install_command('load')}")
    settings.all_headers()
    for name, path in settings.inputs.items():
        if settings.kind == "openai" and path.suffix != ".json":
            raise UsageError(f"input {path} of {name}: an OpenAI request is a .json; use text in [target] for a prompt")
