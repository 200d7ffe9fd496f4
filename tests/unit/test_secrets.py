"""What is masked on command lines and in texts, and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.model.findings import Finding, Severity
from perfharness.secrets import mask_arguments, mask_text
from tests.unit.run_records import manifest_of, process

SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", SECRET],
        ["--api_key=" + SECRET],
        ["-token", SECRET],
        ["HF_TOKEN=" + SECRET],
        ["--url", f"postgres://user:{SECRET}@host/db"],
        ["--url", f"https://host/x?a=1&token={SECRET}&b=2"],
        ["--db-dsn", SECRET],
        ["--bearer", SECRET],
        ["-H", f"Authorization: Bearer {SECRET}"],
        ["-H", f"X-Api-Key: {SECRET}"],
        ["--cfg", json.dumps({"headers": {"Authorization": SECRET}, "n": 1})],
        ["--cfg", f"Server=h;Password={SECRET};User=u"],
        ["--opt", f"Client(password='{SECRET}')"],
        ["--private", f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----"],
        ["--aws", "AKIAABCDEFGHIJKLMNOP"],
        ["ghp_" + SECRET + SECRET],
        ["sk_live_" + SECRET + SECRET],
        ["hvs." + SECRET + SECRET],
        ["--index", f"https://{SECRET}{SECRET}@pypi.example.com/simple"],
        ["--model", f"https://x.blob.core.windows.net/m.onnx?sv=2&sig={SECRET}%2B&se=1"],
        ["--model", f"https://x.s3.amazonaws.com/m?X-Amz-Signature={SECRET}"],
        ["-H", f"Cookie: a=b; session={SECRET}"],
        ["--netrc", f"machine h login u password {SECRET}"],
        ["--cfg", json.dumps({"password": f'a"{SECRET}'})],
        ["--cfg", json.dumps({"body": json.dumps({"password": SECRET})})],
        ["--cfg", f'{{"token": "abc {SECRET}'],
    ],
)
def test_secrets_are_masked(arguments: list[str]) -> None:
    masked = mask_arguments(["python", "s.py", *arguments, "input.jpg"])
    assert masked[:2] + masked[-1:] == ["python", "s.py", "input.jpg"]
    for text in (*masked, mask_text(" ".join(arguments))):
        assert SECRET not in text
        assert "AKIA" not in text


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'x'",
        "key: value",
        "see https://host/a:b@c",
        "--max-tokens 5 --tokenizer bert --keyframes 3",
        "/data/key/x.py",
        "a token",
        "ssh://git@github.com/x",
        "the login page and password rules",
        "signature=serving_default",
        "cookie jar",
        "ValueError: bad frame 7",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask_text(text) == text


@given(st.lists(st.text()))
def test_masked_once_is_masked(arguments: list[str]) -> None:
    once = mask_arguments(arguments)
    assert len(once) == len(arguments)
    assert mask_arguments(once) == once


@pytest.mark.parametrize(
    "piece",
    ["a", "key=", "--a ", "'", 'name"', "eyJaaaaaaaa.", "x://:", 'token="\\', "cookie:", "login a "],
)
def test_long_texts_take_linear_time(piece: str) -> None:
    """Quadratic, this would take hours: the limit of a test's time is the assertion."""
    assert mask_text(piece * (1_000_000 // len(piece)))


def test_a_manifest_holds_none() -> None:
    record = process(0, command=["python", "s.py", "--api-key", SECRET])
    finding = Finding(code="leftover-processes", severity=Severity.WARNING, message=f"7: x --token {SECRET}")
    made = manifest_of(
        record,
        command=["perfharness", "launch", "s.py", "--api-key", SECRET],
        script_arguments=["--api-key", SECRET],
        findings=[finding],
    )
    assert SECRET not in made.model_dump_json()
