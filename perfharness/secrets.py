"""Mask secrets before they are written or printed. Standard library only, for the recorder.

Secrets are recognised by name (`--api-key X`, `token=X`, `Authorization: X`) or by form: passwords in
URLs, well-known tokens, cookies, private keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "***"

_SECRET_WORDS = frozenset(
    {
        "apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "dsn", "jwt", "key",
        "passcode", "passphrase", "passwd", "password", "pwd", "secret", "secrets", "token",
    }
)  # fmt: skip
# `hf_token`, `api-key`, `apiKey` and `APIKey` are secrets; `keyframes`, `monkey` and `max_tokens` are not.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]{0,30}PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_IN_URL = re.compile(r"(?<=://)([^\s/?#@:'\"]{0,200}):([^\s/?#'\"]{1,500})@")
_USER_ALONE = re.compile(r"(?<=://)[^\s/?#@:'\"]{20,500}(?=@)")
_SIGNATURE = re.compile(r"(?<=[?&])((?:sig|signature|x-(?:amz|goog)-signature)=)[^\s&'\"#]{8,}", re.IGNORECASE)
_COOKIES = re.compile(r"\b((?:set-)?cookie:)[^\r\n'\"]+", re.IGNORECASE)
_NETRC = re.compile(r"\b(login\s{1,9}\S{1,200}\s{1,9}password\s{1,9})\S+")
_SCHEME_ALONE = re.compile(r"Bearer|Basic|Digest|Negotiate", re.IGNORECASE)
_SCHEME = re.compile(r"\b(Bearer|Basic|Digest|Negotiate)\s+(?!\*\*\*)[^\s'\",;]{4,}", re.IGNORECASE)
_NAMED = re.compile(
    r"""(?<![\w.-])-{0,2}([A-Za-z][\w.-]{0,99})(?:\\{0,3}["']?\s{0,3}[=:]\s{0,3}(?!//)|\\{0,3}["'],\s{0,3})"""
)
_OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]{0,99})[ \t]{1,9}(?!-)")
_IS_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_IS_NAME = re.compile(r"[\w.-]+")
_VALUE = re.compile(
    r"""\\{1,3}"[^"\n]*"?|\\{1,3}'[^'\n]*'?|"(?:[^"\\\n]|\\[^\n])*"?|'(?:[^'\\\n]|\\[^\n])*'?|[^\s"',;&)\]}]+"""
)
"""A word, or a quoted text, also with escaped quotes (JSON in JSON) or cut off before the second quote."""

_QUOTE = re.compile(r"""(?:\\{0,3}["'])?""")
_TOKENS = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[oprsu]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}"
    r"|sk-[\w-]{16,}|xox[abposr]-[\w-]{10,}|xapp-[\w-]{10,}|nvapi-[\w-]{16,}|AIza[\w-]{30,}"
    r"|[prs]k_(?:live|test)_\w{16,}|npm_[A-Za-z0-9]{30,}|pypi-AgE[\w-]{16,}|dckr_pat_[\w-]{16,}|gsk_[A-Za-z0-9]{16,}"
    r"|glsa_\w{20,}|dop_v1_[0-9a-f]{32,}|hvs\.[\w-]{16,}|ya29\.[\w-]{16,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)


def is_secret(name: str) -> bool:
    """Whether a value with this name is a secret."""
    return any(word.lower() in _SECRET_WORDS for word in _WORD.findall(name))


def mask_text(text: str) -> str:
    """Mask the secrets in a text, in linear time."""
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _IN_URL.sub(rf"\1:{MASK}@", text)
    text = _USER_ALONE.sub(MASK, text)
    text = _SIGNATURE.sub(rf"\1{MASK}", text)
    text = _COOKIES.sub(rf"\1 {MASK}", text)
    text = _NETRC.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(rf"\1 {MASK}", text)
    return _TOKENS.sub(MASK, _mask_values(_mask_values(text, _NAMED), _OPTION))


def _mask_values(text: str, names: re.Pattern[str]) -> str:
    """Mask values after names of secrets; matches of `names` end before the value."""
    parts, end = [], 0
    for found in names.finditer(text):
        if found.start() < end or not _ends_in_secret(found[1]):
            continue
        value = _VALUE.match(text, found.end())
        if value is None or _SCHEME_ALONE.fullmatch(value[0]):
            continue
        quote = _QUOTE.match(value[0])[0]  # type: ignore[index]
        parts += [text[end : found.end()], quote, MASK, quote]
        end = value.end()
    return "".join([*parts, text[end:]])


def _ends_in_secret(name: str) -> bool:
    """Whether the last word of a name in a text is secret, except `key` alone (`KeyError: 'x'`, `key: value`)."""
    words = _WORD.findall(name)
    return bool(words) and words[-1].lower() in _SECRET_WORDS and name.lower() != "key"


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Mask the secrets in a command line: `--api-key X`, `--api-key=X`, `TOKEN=X`, and inside texts."""
    masked, named = list[str](), False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if named and not argument.startswith("--"):
            masked.append(MASK)
            named = False
            continue
        named = not equals and _IS_OPTION.fullmatch(name) is not None and is_secret(name)
        if equals and _IS_NAME.fullmatch(name) and is_secret(name):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(argument if named else mask_text(argument))
    return masked
