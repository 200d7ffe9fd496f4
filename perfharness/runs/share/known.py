"""What must not be in a shared run: values of environment variables, names of users and hosts, home folders."""

from __future__ import annotations

import base64
import getpass
import json
import os
import re
import shlex
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from pydantic import BaseModel

from perfharness.model.journal import RecorderJournal
from perfharness.model.manifest import RunManifest
from perfharness.model.result import path_text
from perfharness.model.secrets import MASK, is_secret, mask_text
from perfharness.model.telemetry import TelemetryMeta
from perfharness.runs.files.benchmark_json import Benchmark, BenchmarkMean
from perfharness.runs.series.steadiness import other_programs

MIN_SECRET_CHARS = 4
"""Shorter values of variables whose names show a secret cannot be distinguished from other text."""

MIN_VALUE_CHARS = 6
"""The same of all other variables and of arguments; shorter ones are words of everyday (`prod`, `en_US`)."""

MIN_ANYWHERE_CHARS = 8
"""Shorter values are only found as whole words."""

MIN_LINE_CHARS = 16
"""Lines of a value of several lines, such as a private key, are searched for one by one from this length on."""

MIN_NAME_CHARS = 3

HARMLESS_VARIABLES = re.compile(
    r"_|TERM|COLORTERM|SHELL|SHLVL|LANG|LANGUAGE|TZ|PAGER|EDITOR|LS_COLORS|DEBIAN_FRONTEND|NVARCH|.*_VERSION|PYTHON.*"
    r"|(LC|NV|NVIDIA|CUDA|NCCL|OMP|OMPI|OCL|PMIX|MKL|PERFHARNESS|NSYS|PIP|UV|XDG|LESS|QUADD|CUPTI|NVTX)_.*"
)
"""Variables whose values say nothing of the user, except for paths, which are replaced by themselves; their values are
words of every trace (a version, the name of a GPU)."""

PUBLIC_VALUE = re.compile(r"(/[^\n]*)|[\d.,:+ -]+|true|false|(GPU|MIG)-[0-9a-f-]+", re.IGNORECASE)
"""Paths, which are replaced by their own rule; numbers, addresses of nothing; UUIDs of GPUs."""

GENERIC_NAMES = frozenset(
    {
        "admin", "administrator", "ci", "debian", "docker", "ec2-user", "github", "gitlab", "host", "jenkins", "jovyan",
        "localhost", "nobody", "none", "node", "python", "root", "runner", "server", "test", "ubuntu", "user", "users",
        "vagrant", "vscode", "work", "worker", "workspace",
    }
)  # fmt: skip
"""Names of users and hosts that are of nobody in particular."""

GENERIC_PROGRAMS = re.compile(
    r"python[\d.]*|perfharness.*|nsys.*|nvidia-.*|Xorg|systemd.*|init|cron|dbus-daemon|sshd?|sudo|bash|sh|zsh|fish|tmux.*"
    r"|screen|sleep|top|htop|dockerd?|containerd.*|java|node|make|gcc|g\+\+|cc1(plus)?|ld|rcu_.*|migration/.*"
    r"|k(worker|softirqd|swapd|threadd|hugepaged|compactd|blockd|auditd).*"
)
"""Programs and threads of the kernel that are on every machine."""

COMMON_VALUES = frozenset({"cuda", "false", "none", "null", "true"})
"""Values that traces have of their own."""

USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER")
HOST_VARIABLES = ("HOSTNAME", "HOST", "COMPUTERNAME", "SLURMD_NODENAME")
SHARED_HOME = re.compile(r"(?:/var)?/(?:home|Users)/([^/\s\"':;,]+)")


@dataclass(frozen=True)
class Value:
    """A text to remove, and what stands for it.

    Args:
        what: environment | argument | asked.
        label: the variable's name, or how it was given.
    """

    text: str
    alias: str
    what: str
    label: str


@dataclass
class Known:
    """What must not be in a shared run.

    Attributes:
        users, hosts: names with their aliases.
        programs: other programs of the machine, with their aliases.
        homes: home folders, which become `~`.
        folders: other folders that are known to be the user's.
        not_searched: labels of values that are too short or too common to be searched for.
    """

    values: list[Value] = field(default_factory=list)
    users: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    homes: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    not_searched: list[str] = field(default_factory=list)

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """The values of variables, as far as they are anybody's own; and the names in them."""
        for name in USER_VARIABLES:
            self.add_user(environment.get(name, ""))
        for name in HOST_VARIABLES:
            self.add_host(environment.get(name, ""))
        if (home := environment.get("HOME", "").rstrip("/")).count("/") >= 1 and home != "/":
            self.add_home(home)
        for name, text in environment.items():
            self._add_variable(name, text)

    def _add_variable(self, name: str, text: str) -> None:
        secret = is_secret(name) and name not in ("PWD", "OLDPWD")
        if not secret and (
            name in (*USER_VARIABLES, *HOST_VARIABLES) or HARMLESS_VARIABLES.fullmatch(name) or is_public(text)
        ):
            return
        self._add(text, "environment", name, MIN_SECRET_CHARS if secret else MIN_VALUE_CHARS, is_asked=secret)

    def add_arguments(self, arguments: Iterable[str]) -> None:
        """Arguments of the script: each, and what stands behind its `=`."""
        for argument in arguments:
            for text in dict.fromkeys((argument, argument.partition("=")[2])):
                if not is_public(text) or text.startswith("/"):
                    self._add(text, "argument", "an argument", MIN_VALUE_CHARS)

    def add_asked(self, texts: Iterable[str]) -> None:
        """Texts that the user named."""
        for text in texts:
            self._add(text, "asked", "--remove", 1, is_asked=True)

    def _add(self, text: str, what: str, label: str, least: int, *, is_asked: bool = False) -> None:
        if not text.strip() or any(value.text == text for value in self.values):
            return
        is_common = text in words_of_files() or text.lower() in COMMON_VALUES or is_alias(text)
        if is_common or len(text) < (MIN_ANYWHERE_CHARS if text.isdigit() else least):
            if is_asked and label not in self.not_searched:
                self.not_searched.append(label)
            return
        number = sum(value.what == what for value in self.values) + 1
        self.values.append(Value(text, f"<{what}-{number}>", what, label))

    def add_user(self, name: str) -> None:
        """The name of a user."""
        if is_own_name(name):
            self.users.setdefault(name, f"user-{len(self.users) + 1}")

    def add_host(self, name: str) -> None:
        """The name of a machine, with and without its domain."""
        if not is_own_name(name) and not is_own_name(name.partition(".")[0]):
            return
        alias = self.hosts.get(name) or self.hosts.get(name.partition(".")[0])
        alias = alias or f"host-{len(set(self.hosts.values())) + 1}"
        for each in (name, name.partition(".")[0]):
            if is_own_name(each):
                self.hosts.setdefault(each, alias)

    def add_program(self, name: str) -> None:
        """The name of a program that is not of the run."""
        if name and not GENERIC_PROGRAMS.fullmatch(name):
            self.programs.setdefault(name, f"program-{len(self.programs) + 1}")

    def add_home(self, folder: str) -> None:
        """A home folder; its last part is the user's name."""
        if folder not in self.homes:
            self.homes.append(folder)
        self.add_user(folder.rpartition("/")[2])

    def add_paths(self, texts: Iterable[str]) -> None:
        """Home folders in texts."""
        for text in texts:
            for found in SHARED_HOME.finditer(text):
                self.add_home(found[0])

    def add_folder(self, folder: str | None) -> None:
        """A folder that is the user's."""
        if folder and folder.startswith("/") and folder not in self.folders:
            self.folders.append(folder)

    def add_this_machine(self) -> None:
        """User, host and environment of this process: runs are mostly shared where they were made."""
        self.add_environment(dict(os.environ))
        self.add_host(socket.gethostname())
        try:
            self.add_user(getpass.getuser())
            self.add_home(str(Path.home()))
        except (KeyError, OSError, RuntimeError):
            pass  # a user without an entry

    def add_manifest(self, manifest: RunManifest, *, arguments: bool) -> None:
        """What the manifest says of the machine.

        Args:
            arguments: whether the script's arguments are to be removed too.
        """
        self.add_host(manifest.environment.hostname or "")
        texts = [manifest.working_dir or "", manifest.script, *manifest.command]
        self.add_paths([*texts, *(text for process in manifest.processes for text in process.command)])
        self.add_folder(manifest.working_dir)
        for name in other_programs(manifest):
            self.add_program(name)
        if arguments:
            self.add_arguments(manifest.script_arguments)


def is_public(text: str) -> bool:
    """Whether a value is nobody's own: a path (or several), a number, a UUID of a GPU."""
    return all(not part or PUBLIC_VALUE.fullmatch(part) for part in text.split(":")) or bool(
        PUBLIC_VALUE.fullmatch(text) and not text.startswith("/")
    )


def is_own_name(name: str) -> bool:
    """Whether the name of a user or host is worth hiding."""
    return len(name) >= MIN_NAME_CHARS and name.lower() not in GENERIC_NAMES and name not in words_of_files()


def is_alias(text: str) -> bool:
    """Whether a text may be part of what stands for removed ones."""
    return re.fullmatch(r"<?(environment|argument|asked|dir|user|host|program)-?\d*>?", text) is not None


@cache
def words_of_files() -> frozenset[str]:
    """Keys and fixed words of the result files, which cannot be replaced in them."""
    models: Sequence[type[BaseModel]] = (RunManifest, RecorderJournal, TelemetryMeta, Benchmark, BenchmarkMean)
    return frozenset(word for model in models for word in _words(model.model_json_schema(mode="serialization")))


def _words(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties":
                yield from value
            elif key in ("enum", "const"):
                yield from (word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str))
            yield from _words(value)
    elif isinstance(schema, list):
        for one in schema:
            yield from _words(one)


def forms(text: str) -> list[str]:
    """A value as it may stand in a text: as it is, as JSON, Python, a shell, a URL or base64 write it, and masked."""
    written = [
        text,
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        repr(text)[1:-1],
        ascii(text)[1:-1],
        shlex.quote(text)[1:-1] if "'" in text else text,
        path_text((text,)),
    ]
    raw = text.encode("utf-8", "surrogateescape")
    if len(text) >= MIN_ANYWHERE_CHARS:
        written += [quote(raw, safe=""), quote_plus(raw), quote(raw)]
        written += [encode(raw).decode().rstrip("=") for encode in (base64.b64encode, base64.urlsafe_b64encode)]
        written += [line for line in text.splitlines() if len(line) >= MIN_LINE_CHARS]
        masked = mask_text(text)  # as results have it: `http://user:***@proxy.acme.example`
        written += [masked] if len(masked.replace(MASK, "")) >= MIN_ANYWHERE_CHARS else []
    return list(dict.fromkeys(one for one in written if one))
