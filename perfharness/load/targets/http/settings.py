"""How an HTTP target is asked: the table `[target]` of a profile."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import Self

from perfharness.errors import UsageError
from perfharness.model.secrets import MASK, is_secret, mask_text

Kind = Literal["plain", "kserve", "openai"]

KSERVE_PATH = re.compile(r"(?P<model>/v2/models/[^/]+(?:/versions/[^/]+)?)(?:/infer)?/?")
OPENAI_PATHS = ("/chat/completions", "/completions")
VARIABLE = re.compile(r"\$\{(\w+)\}")


class _Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=lambda name: name.removesuffix("_s").replace("_", "-"),
        populate_by_name=True,
    )  # fmt: skip


class HttpInput(_Settings):
    """What is sent; of an entry of the mix, members that are left out are those of the target.

    Args:
        body: a file that is sent as it is.
        text: the same, written out; of OpenAI-style servers the prompt.
        input_file: KServe: `.npz` with arrays by input name, of one item or of a batch.
        max_tokens: OpenAI.
    """

    body: Path | None = None
    text: str | None = None
    input_file: Path | None = None
    max_tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_body(self) -> Self:
        if self.body is not None and self.text is not None:
            raise ValueError("body and text both say what is sent; leave one away")
        return self


class HttpSettings(HttpInput):
    """An HTTP endpoint and what it is sent.

    Args:
        url: of the requests; of a KServe model `http://HOST/v2/models/NAME`.
        protocol: None: by the path of the URL.
        method: of plain requests; None: POST where there is a body, else GET.
        headers: by name; `${NAME}` in a value stands for an environment variable, so that no file holds a secret.
        headers_file: a header a line, as `Name: value`.
        inputs: what is sent for the entries of the mix, by their names.
        shapes: KServe: of inputs whose dimensions are open, the first being the batch, as `x = ["batch", 3, 224]`.
        binary: KServe: tensors as bytes behind the JSON (Triton's extension).
        model: OpenAI: its name; None: the first that the server lists.
        stream: OpenAI: ask for a stream, which shows when each token came.
        parameters: OpenAI, KServe: more members of the JSON that is sent.
        expect: what a right answer is, as in `--expect`.
        connect_timeout_s: for a connection to be there; the time-out of a whole request is the profile's.
        read_timeout_s: between two parts of an answer.
        keep_alive_s: an idle connection is closed then, before the server does (uvicorn: after 5 s).
        verify_tls: whether the server's certificate is checked.
        seed: of generated inputs.
    """

    url: str
    protocol: Kind | None = None
    method: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    headers_file: Path | None = None
    inputs: dict[str, HttpInput] = Field(default_factory=dict)
    shapes: dict[str, tuple[int | str, ...]] = Field(default_factory=dict)
    binary: bool = False
    model: str | None = None
    stream: bool = True
    parameters: dict[str, Any] = Field(default_factory=dict)
    expect: tuple[str, ...] = ()
    connect_timeout_s: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    read_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    keep_alive_s: float = Field(default=4.0, gt=0, allow_inf_nan=False)
    verify_tls: bool = True
    seed: int = 0

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
        return url

    @property
    def kind(self) -> Kind:
        """The protocol, by the path of the URL where it is not given."""
        if self.protocol is not None:
            return self.protocol
        path = urlsplit(self.url).path.rstrip("/")
        if KSERVE_PATH.search(path):
            return "kserve"
        return "openai" if path.endswith(OPENAI_PATHS) else "plain"

    def all_headers(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The headers that are sent, those of the file included. Raises `UsageError`."""
        found = {} if self.headers_file is None else _read_headers(self.headers_file)
        found |= self.headers
        return {name: _filled(name, value, environ) for name, value in found.items()}

    def sets(self, header: str) -> bool:
        """Whether a header is given."""
        return header.lower() in {name.lower() for name in self.all_headers()}

    def masked(self) -> HttpSettings:
        """The same without secrets, for files that others read."""
        headers = {name: MASK if is_secret(name) else value for name, value in self.headers.items()}
        return self.model_copy(update={"url": mask_text(self.url), "headers": headers})


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
