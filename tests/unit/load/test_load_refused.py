"""What `perfharness stress` refuses before anything starts: exit code 2, a sentence that names it, no folder."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from perfharness.cli.main import run

APP = """
class Model:
    def __call__(self, request):
        pass

class Needs(Model):
    def __init__(self, path):
        pass

class Silent:
    pass

def three(a, b, c):
    pass

value = 3
"""
FILES = {
    "app.py": APP,
    "imports.py": "import no_such_module\n",
    "syntax.py": "def\n",
    "exits.py": "import sys; sys.exit(3)\n",
    "broken.json": "{",
    "a.png": "",
}


MODEL, PROFILE, URL = "app.py:Model", "app.py:Model --profile load.toml", "http://127.0.0.1:9/"
TARGETS = [
    ("nowhere", "nowhere"),
    (":serve", "no module"),
    ("localhost:8000", "http://"),
    ("app.py:Modelx", "Modelx"),
    ("app.py:value", "not callable"),
    ("app.py:Silent", "__call__"),
    ("app.py:Needs", "path"),
    ("app.py:three", "3 arguments"),
    ("none.py:three", "does not exist"),
    ("no_such_module:serve", "no_such_module"),
    ("imports.py:serve", "imports.py:1"),
    ("imports:serve", "imports.py:1"),
    ("syntax.py:serve", "SyntaxError"),
    ("exits.py:serve", "SystemExit"),
    ("nowhere.onnx --backend onnxruntime", "nowhere.onnx"),
    ("tests.contract.tiny_models:create --backend nothing", "nothing"),
    ("tests.contract.tiny_models:create --backend onnxruntime --input a.png", "npz"),
    ("app.py:Model --device cpu", "device"),
    ("app.py:Model --start true", "URL"),
    ("app.py:Model --expect-status 200", "URL"),
    ("http://127.0.0.1:9/", "no server listens"),
    ("http://127.0.0.1:9/ --backend torch", "--backend"),
    ("http://127.0.0.1:9/ --start true -np 2", "-np"),
    ("http://127.0.0.1:9/ --start ' '", "--start"),
    ("http://127.0.0.1:9/ --expect-status 42", "expect-status"),
    ("http://u:geheim@h/", "password"),
    ("ftp://h/", "only http"),
    *((url, "url") for url in ("http:///x", "http://h:99999/", "http://[::1")),
]
OBJECTIVES = ("p99", "p100<=1ms", "p0<=1ms", "p99<=1ms,p50<=1ms", "errors<=1%", "p9<=0ms", "1ms,errors<=100%", "fast")
OPTIONS = [
    ("--rate 0", "rate"),
    ("--rate -1", "rate"),
    ("--rate 1e9", "requests"),
    ("--duration soon", "duration"),
    ("--arrivals poisson", "rate"),
    ("--arrivals often --rate 3", "arrivals"),
    ("--max-error-rate 2", "max-error-rate"),
    ("--rate 5 --rates 5,10", "rates"),
    ("--rates 5,5", "same name"),
    ("--rates 5,fast", "rates"),
    ("--rates ''", "rates"),
    ("--fail-if 'error_rate > 1%'", "error_rate"),
    *((f"--input {name}", name) for name in ("none.npy", "broken.json", "a.png")),
    *((f"--objective '{text}'", "objective") for text in OBJECTIVES),
]
ONE = "[[load.phases]]\nduration = 1\n"
PROFILES = [
    ("load.phases = 1", "phases"),
    ("load.phases = []", "phases"),
    ('load.phases = ["a"]', "phases.0"),
    ("[load]", "phases"),
    (ONE + "rat = 5", "rat"),
    ("load.mix = 3\n" + ONE, "mix"),
    ("load.seed = -1\n" + ONE, "seed"),
    ("load.seed = true\n" + ONE, "seed"),
    ("[[load.phases]]\nduration = true", "duration"),
    ("load.objective = 5\n" + ONE, "objective"),
    ("load.objective = {latency_ms = -5}\n" + ONE, "latency_ms"),
    ("load.objective = {latency_ms = 5, percentile = 200}\n" + ONE, "percentile"),
    (ONE + "rate = 2\nburst = 3", "burst"),
    (ONE + "rate-to = 3", "rate-to"),
    (ONE + "rate = 1\nrate-to = 1e9", "requests"),
    (ONE + 'times-file = "a"\nrate = 2', "times-file"),
    (ONE + 'times-file = "a"\narrivals = "poisson"', "arrivals"),
    (ONE + 'times-file = "a"\nconcurrency = 1', "concurrency"),
    (ONE + 'times-file = "none.txt"', "none.txt"),
    ('[[load.mix]]\nname = "a"\nweight = -1\n' + ONE, "weight"),
]
TIMES = ("1\nsoon\n", "", "-1\n", "nan\n", "2\n")
TABLES = [
    ('headers = {X-Api-Key = "abc"}', "X-Api-Key"),
    ('headers = {Authorization = "Bearer ${PERFHARNESS_NO_SUCH}"}', "PERFHARNESS_NO_SUCH"),
    ("boddy = 1", "boddy"),
    ("max-tokens = 0", "max-tokens"),
    ('text = "a"\nbody = "b"', "body"),
]


@pytest.mark.parametrize(
    ("words", "named", "profile", "times"),
    [
        *((f"{words} --rate 3", named, "", "") for words, named in TARGETS),
        *((f"{MODEL} {words}", named, "", "") for words, named in OPTIONS),
        *((PROFILE, named, text, "") for text, named in PROFILES),
        *((PROFILE, "a.txt", ONE + 'times-file = "a.txt"', times) for times in TIMES),
        (f"{PROFILE} --rate 3", "rate", ONE, ""),  # the file has it already
        *((f"{URL} --profile load.toml --rate 3", named, f"[target]\n{table}\n", "") for table, named in TABLES),
    ],
)
def test_refused(
    tmp_path: Path,
    words: str,
    named: str,
    profile: str,
    times: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {**FILES, "load.toml": profile, "a.txt": times}.items():
        (tmp_path / name).write_text(text)
    given = shlex.split(words)
    assert run(["stress", *given, "--tracer", "none", "--no-telemetry", "--no-history", "-o", "out"]) == 2
    said = capsys.readouterr().err
    assert ("Traceback" in said, "geheim" in said, Path("out").exists()) == (False, False, False), said
    assert named in said
