"""Texts without what must not be shared. The same text becomes the same, different ones stay different."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perfharness.model.result import path_of, path_text
from perfharness.model.secrets import MASK, mask_text
from perfharness.runs.share.known import MIN_ANYWHERE_CHARS, Known, forms, words_of_files

SYSTEM_FOLDER = re.compile(r"/(usr|lib|lib64|bin|sbin|etc|proc|sys|dev|opt/nvidia)(/|$)")
"""Paths that are alike on many machines stay as they are."""

USUAL_ROOTS = frozenset(
    {
        "app", "apps", "code", "data", "export", "gpfs", "home", "lustre", "media", "mnt", "net", "nfs",
        "nix", "opt", "private", "project", "projects", "root", "run", "scratch", "shared", "share",
        "software", "srv", "storage", "tmp", "Users", "var", "volume", "volumes", "work", "workspace",
        "workspaces",
    }
)  # fmt: skip
"""First parts of paths that are recognised in any text. `/conv1/Conv` may be the name of a layer."""

KEPT_PART = re.compile(
    r"\.{1,2}|bin|sbin|lib|lib64|src|include|share|\.?venv|envs?|(target|host)-linux-x64|explain|first"
    r"|(proc_\d+_gpu|child|rank|np|cold|warm|launch|dir)[_-]\d+"
)
"""Folders that say nothing of anybody, and whose names the analysis or a reader needs."""

PACKAGES = re.compile(r"site-packages|dist-packages|python3(\.\d+)?|perfharness|perfharness_launcher")
"""Below these the path is that of an installed module, by which the analysis knows libraries."""

FILE_NAME = re.compile(r".+\.[A-Za-z][A-Za-z0-9_]{0,14}(\.\d+)*|.*\.so[.\d]*|\.[a-z_]+")
PROGRAM_FOLDERS = ("bin", "sbin")
REST = r"[^\s\"'`<>|;,()\[\]{}=:?*!&$#\\]*"
PATH = re.compile(rf"(?<![\w~.<\-/])(?:(?<=file:)//)?/(?=[^/\s]){REST}")
ESCAPED = r"(?:\\/(?:\\\\|[^\s\"'`<>|;,()\[\]{}=:?*!&$#\\/])+)"
ESCAPED_PATH = re.compile(f"{ESCAPED}+")
"""A path inside of a key of a path of stages (`path_text`)."""

MAX_REMEMBERED_CHARS = 2000
"""Longer texts (logs) are no names, so two of them may become the same."""

HOST_KEYS = frozenset({"hostname"})
QUOTING_KEYS = {"message": "\n"}
"""Texts that may quote what a process printed, and what stands before it."""

SENTENCE_KEYS = frozenset({"message", "hint", "reason"})
"""Texts that may name other programs of the machine. A stage, or a function, may have the name of a program."""

PROGRAM_FIELDS = frozenset({"pid", "name", "cpu_s", "memory_bytes"})
"""Of an object that is another program of the machine."""

ARGUMENT_KEYS = frozenset({"script_arguments", "args"})

_Replace = Callable[["re.Match[str]"], str]


class Redactor:
    """Replaces what is known, paths, and what looks like a secret.

    Args:
        script_arguments: the script's arguments as its files have them, to be removed; None: they stay.
        with_output: whether what a process printed may stay, where findings quote it.
    """

    def __init__(self, known: Known, script_arguments: list[str] | None = None, *, with_output: bool = False) -> None:
        self.removed: Counter[str] = Counter()
        """How many different texts had something of each kind: environment, user, host, path, …"""

        self._arguments = script_arguments
        self._with_output = with_output
        self._parts: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._originals: dict[str, str] = {}
        self._homes = sorted(known.homes, key=len, reverse=True)
        self._roots = USUAL_ROOTS | {folder.split("/")[1] for folder in (*known.homes, *known.folders)}
        self._whole: dict[str, tuple[str, str]] = {}
        self._words: dict[str, tuple[str, str]] = {}
        for value in sorted(known.values, key=lambda one: len(one.text), reverse=True):
            for form in forms(value.text):
                is_anywhere = len(value.text) >= MIN_ANYWHERE_CHARS and not value.text.isdigit()
                (self._whole if is_anywhere else self._words).setdefault(form, (value.what, value.alias))
        own = [folder for folder in (*known.homes, *known.folders) if self._is_own_folder(folder)]
        own.sort(key=len, reverse=True)
        self.removed.clear()  # these were not in any file
        in_keys = [path_text((folder,)) for folder in own]
        self._folders = [*own, *in_keys]
        self._names = {name.lower(): ("user", alias) for name, alias in known.users.items()}
        self._names |= {name.lower(): ("host", alias) for name, alias in known.hosts.items()}
        self._is_value = _alternatives(self._whole, self._words)
        self._is_name = _alternatives({}, self._names, re.IGNORECASE)
        self._programs = known.programs
        self._is_program = _alternatives({}, known.programs)
        plain, escaped = ("|".join(map(re.escape, each)) for each in (own, in_keys))
        end = "(?![A-Za-z0-9_-])"
        self._is_folder = re.compile(f"(?:{plain}){end}(?:/{REST})?|(?:{escaped}){end}{ESCAPED}*") if own else None
        self._host_alias = next(iter(known.hosts.values()), "host-1")

    @property
    def needles(self) -> list[str]:
        """What must be nowhere in the shared files, not even inside of other text or binary data."""
        return [form for form in self._whole if len(form) >= MIN_ANYWHERE_CHARS]

    @property
    def folders(self) -> re.Pattern[bytes] | None:
        """Finds folders that must be nowhere either, in UTF-8."""
        written = {form for folder in self._folders for form in (folder, json.dumps(folder)[1:-1])}
        texts = b"|".join(re.escape(one.encode("utf-8", "surrogateescape")) for one in sorted(written, reverse=True))
        return re.compile(b"(?:" + texts + b")(?![A-Za-z0-9_-])") if written else None

    def _is_own_folder(self, folder: str) -> bool:
        """Whether a folder is so long that it is nothing else, and would be replaced."""
        return folder.count("/") >= 2 and len(folder) >= MIN_ANYWHERE_CHARS and self.path(folder) != folder

    def text(self, text: str) -> str:
        """A text without what must not be shared."""
        known = self._texts.get(text)
        if known is not None:
            return known
        if len(text) > MAX_REMEMBERED_CHARS:
            return self._redacted(text)
        return self._remembered(text, text if text in words_of_files() else self._redacted(text))

    def _remembered(self, text: str, made: str) -> str:
        made = self._texts[text] = self._unique(text, made)
        return made

    def _unique(self, text: str, made: str) -> str:
        """Two names that become the same would be one stage, with the sum of both."""
        number, first = 1, made
        while self._originals.setdefault(made, text) != text:
            number += 1
            made = f"{first} ({number})"
        return made

    def _redacted(self, text: str) -> str:
        if self._is_value is not None:
            text = self._is_value.sub(self._value, text)
        if self._is_folder is not None:
            text = self._is_folder.sub(self._known_folder, text)
        if "/" in text:
            text = PATH.sub(self._path_in_text, text)
        if "\\/" in text:
            text = ESCAPED_PATH.sub(self._path_in_key, text)
        if self._is_name is not None:
            text = self._is_name.sub(self._name, text)
        masked = mask_text(text)
        if masked == text:
            return text
        self.removed["secret"] += 1
        return masked if self._is_value is None else self._is_value.sub(self._value, masked)

    def _value(self, found: re.Match[str]) -> str:
        what, alias = self._whole.get(found[0]) or self._words[found[0]]
        self.removed[what] += 1
        return alias

    def _name(self, found: re.Match[str]) -> str:
        what, alias = self._names[found[0].lower()]
        self.removed[what] += 1
        return alias

    def _path_in_text(self, found: re.Match[str]) -> str:
        path = found[0].removeprefix("//")
        prefix = found[0][: len(found[0]) - len(path)]
        if path.split("/")[1] not in self._roots:
            return found[0]
        end = len(path.rstrip("."))  # of a sentence
        return prefix + self.path(path[:end]) + path[end:]

    def _path_in_key(self, found: re.Match[str]) -> str:
        path = found[0].replace("\\/", "/")
        return path_text((self.path(path),)) if path.split("/")[1] in self._roots else found[0]

    def _known_folder(self, found: re.Match[str]) -> str:
        is_in_key = found[0].startswith("\\/")
        path = self.path(path_of(found[0])[0] if is_in_key else found[0])
        return path_text((path,)) if is_in_key else path

    def path(self, path: str) -> str:
        """An absolute path whose folders are replaced, part by part; names of files stay."""
        if not path.startswith("/") or SYSTEM_FOLDER.match(path):
            return path
        home = next((home for home in self._homes if path == home or path.startswith(f"{home}/")), None)
        if home is None and (found := re.match(r"/(?:(?:var/)?(?:home|Users)/[^/]+|root)(?=/|$)", path)):
            home = found[0]
        start, parts = ("~", path[len(home) :].split("/")[1:]) if home else ("", path.split("/")[1:])
        made = [start]
        for at, part in enumerate(parts):
            made.append(self._part(part, parts, at, is_root=at == 0 and not home))
            if PACKAGES.fullmatch(part):
                made += parts[at + 1 :]
                break
        result = "/".join(made)
        if result != path:
            self.removed["path"] += 1
        return result

    def _part(self, part: str, parts: list[str], at: int, *, is_root: bool) -> str:
        is_last = at == len(parts) - 1
        if (
            not part
            or (is_root and part in USUAL_ROOTS)
            or KEPT_PART.fullmatch(part)
            or PACKAGES.fullmatch(part)
            or (is_last and (FILE_NAME.fullmatch(part) or (at and parts[at - 1] in PROGRAM_FOLDERS)))
        ):
            return part
        return self._parts.setdefault(part, f"dir-{len(self._parts) + 1}")

    def place(self, text: str) -> str:
        """What names a file, whatever characters are in it: a path, or the kind of name that code without one has."""
        if not text.startswith("/") or text in self._texts:
            return self.text(text)
        return self._remembered(text, self._redacted(self.path(text)))

    def json(self, value: Any, key: str = "") -> Any:
        """JSON whose texts and keys are redacted."""
        if isinstance(value, str):
            if key in HOST_KEYS:
                self.removed["host"] += 1
                return self._host_alias
            if key in QUOTING_KEYS and not self._with_output:
                value = self._without_output(value, QUOTING_KEYS[key])
            if key in SENTENCE_KEYS and self._is_program is not None:
                value = self._is_program.sub(self._program, value)
            return self.place(value) if key in ("file", "path", "working_dir", "python") else self.text(value)
        if isinstance(value, list):
            if self._arguments is not None and key == "command":
                value = self._without_arguments(value)
            elif self._arguments is not None and key in ARGUMENT_KEYS:
                self.removed["argument"] += len(value)
                return [MASK] * len(value)
            return [self.json(one, key) for one in value]
        if isinstance(value, dict):
            if self._arguments is not None and key in ARGUMENT_KEYS:
                return self._masked(value)
            if {"pid", "name"} <= value.keys() <= PROGRAM_FIELDS and value["name"] in self._programs:
                self.removed["program"] += 1
                value = {**value, "name": self._programs[value["name"]]}
            return dict(self._items(value))
        return value

    def _program(self, found: re.Match[str]) -> str:
        self.removed["program"] += 1
        return self._programs[found[0]]

    def _without_output(self, text: str, end: str) -> str:
        """A sentence without what it quotes of the output."""
        kept, found, _ = text.partition(end)
        if not found:
            return text
        self.removed["output"] += 1
        return f"{kept} (left out)"

    def _masked(self, value: Any) -> Any:
        """The values of arguments by name, as they may be in a recorder's file."""
        if isinstance(value, dict):
            return {self.text(name): self._masked(one) for name, one in value.items()}
        self.removed["argument"] += 1
        return MASK

    def _items(self, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, one in value.items():
            yield (self.place(name) if name.startswith("/") else self.text(name)), self.json(one, name)

    def _without_arguments(self, command: list[Any]) -> list[Any]:
        count = len(self._arguments or ())
        if not count or command[-count:] != self._arguments:
            return command
        self.removed["argument"] += count
        return command[:-count] + [MASK] * count


def _alternatives(anywhere: Mapping[str, Any], words: Mapping[str, Any], flags: int = 0) -> re.Pattern[str] | None:
    """Finds any of the texts, the longest first; the second ones only as whole words."""
    texts = sorted({**anywhere, **words}, key=len, reverse=True)
    if not texts:
        return None
    return re.compile("|".join(re.escape(text) if text in anywhere else _as_word(text) for text in texts), flags)


def _as_word(text: str) -> str:
    """Not inside of a word; of a number, not inside of another."""
    inside = r"[\d.]" if text.isdigit() else "[A-Za-z0-9]"
    return rf"(?<!{inside}){re.escape(text)}(?!{inside})"
