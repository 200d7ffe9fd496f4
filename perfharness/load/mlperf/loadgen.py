"""The library itself: its settings from ours and its files, and a test. The only module that imports it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NoReturn

from perfharness.distribution import install_command
from perfharness.errors import ToolNotFoundError, UsageError
from perfharness.load.mlperf.data import DataSet, LoadedSamples
from perfharness.load.mlperf.settings import MlperfSettings
from perfharness.model.units import NS_PER_MS

EXPECTED_FASTER = 2.0
"""LoadGen makes the queries of a test beforehand, for the latency or rate that it is said to expect: as if the system
were that much faster than its warm-up, so that it does not run out of them."""

EXPECTED_OFFLINE = 1.2
"""The same of Offline, whose length in time grows with it."""

MOST_GENERATED = 10_000_000
"""Samples that LoadGen is made to prepare where nobody says what to expect; each takes about 330 bytes."""

SUBMITTERS_OWN = (
    "multi_stream_expected_latency_ns", "offline_expected_qps", "server_target_qps",
    "single_stream_expected_latency_ns",
)  # fmt: skip
"""Settings that the rules leave to the submitter."""


def loadgen() -> ModuleType:
    """The library. Raises `ToolNotFoundError` where it is not installed."""
    try:
        import mlperf_loadgen
    except ImportError as error:
        raise ToolNotFoundError(
            f"MLPerf LoadGen is not installed ({error}); {install_command('mlperf')}, with CPython 3.10 to 3.13"
        ) from error
    module: ModuleType = mlperf_loadgen
    return module


def respond(ids: Sequence[int]) -> None:
    """Complete samples, without data."""
    import mlperf_loadgen as lg

    lg.QuerySamplesComplete([lg.QuerySampleResponse(one, 0, 0) for one in ids])


def test_settings(
    settings: MlperfSettings, folder: Path, round_s: float, size: int
) -> tuple[Any, dict[str, list[int | float]]]:
    """LoadGen's settings: its defaults, over these its own rules of the benchmark and user.conf, over these ours; and
    which of ours differ from its rules and user.conf, where these were applied.

    Args:
        folder: gets an empty user.conf where there is none, for LoadGen applies its rules with one.
        round_s: shortest execution of the warm-up, of `size` samples; what LoadGen should expect where nobody says.

    Raises `UsageError` where a file cannot be read by LoadGen.
    """
    lg = loadgen()
    made = lg.TestSettings()
    if settings.user_conf is not None or settings.benchmark is not None:
        _apply_files(made, settings, folder)
    before = _numbers(made)
    made.scenario = getattr(lg.TestScenario, settings.scenario)
    made.mode = lg.TestMode.PerformanceOnly
    given = {
        "min_duration_ms": None if settings.min_duration_s is None else round(settings.min_duration_s * 1e3),
        "max_duration_ms": None if settings.max_duration_s is None else round(settings.max_duration_s * 1e3),
        "min_query_count": settings.min_queries,
        "max_query_count": settings.max_queries,
        "multi_stream_samples_per_query": settings.samples_per_query,
        **dict.fromkeys(("qsl_rng_seed", "sample_index_rng_seed", "schedule_rng_seed"), settings.seed),
        "performance_sample_count_override": settings.performance_samples,
    }
    for name, value in given.items():
        if value is not None:
            setattr(made, name, value)
    _set_targets(made, settings, round_s, size)
    if settings.user_conf is None and settings.benchmark is None:
        return made, {}
    changed = {name: [before[name], value] for name, value in _numbers(made).items() if value != before[name]}
    return made, {name: values for name, values in changed.items() if name not in SUBMITTERS_OWN}


def _set_targets(made: Any, settings: MlperfSettings, round_s: float, size: int) -> None:
    """The rate or latency that is asked for; or else, without a user.conf, the one to expect after the warm-up."""
    latency_ns = None if settings.target_latency_ms is None else settings.target_latency_ms * NS_PER_MS
    most_per_s = MOST_GENERATED / max(made.min_duration_ms / 1e3, 1e-3)
    expects = settings.user_conf is None
    if settings.scenario == "Server":
        if latency_ns is not None:
            made.server_target_latency_ns = round(latency_ns)
        if settings.target_qps is not None:
            made.server_target_qps = settings.target_qps
    elif settings.scenario == "Offline":
        rate = settings.target_qps
        if rate is None and expects:
            rate = min(EXPECTED_OFFLINE * settings.workers * size / round_s, most_per_s)
        if rate is not None:
            made.offline_expected_qps = rate
    else:
        name = "single_stream" if settings.scenario == "SingleStream" else "multi_stream"
        samples = made.multi_stream_samples_per_query if settings.scenario == "MultiStream" else 1
        if latency_ns is None and expects:
            latency_ns = max(-(-samples // size) * round_s / EXPECTED_FASTER, samples / most_per_s) * 1e9
        if latency_ns is not None:
            setattr(made, f"{name}_expected_latency_ns", max(latency_ns, 1.0))


def _numbers(made: Any) -> dict[str, int | float]:
    named = {name: getattr(made, name) for name in dir(made) if not name.startswith("_")}
    return {name: value for name, value in named.items() if isinstance(value, int | float)}


RULES = re.compile(rb"^([\w.+-]+)\.\*\.performance_sample_count_override", re.MULTILINE)


def check_rules(settings: MlperfSettings) -> None:
    """Raise `UsageError` where LoadGen cannot read user.conf, or has no rules of the benchmark.

    LoadGen takes a benchmark that it does not know for one without rules of its own, and has no list of them; the names
    are in its text of mlperf.conf.
    """
    if settings.user_conf is not None or settings.benchmark is not None:
        with TemporaryDirectory() as folder:
            _apply_files(loadgen().TestSettings(), settings, Path(folder))
    if settings.benchmark is not None:
        known = sorted({name.decode() for name in RULES.findall(Path(str(loadgen().__file__)).read_bytes())})
        if known and settings.benchmark not in known:
            raise UsageError(f"--benchmark {settings.benchmark}: LoadGen has rules of {', '.join(known)}")


def _apply_files(made: Any, settings: MlperfSettings, folder: Path) -> None:
    """The rules of mlperf.conf, which LoadGen has inside, and of user.conf, which is copied into the folder."""
    copy = folder / "user.conf"
    copy.write_bytes(b"" if settings.user_conf is None else settings.user_conf.read_bytes())
    result = made.FromConfig(str(copy), settings.benchmark or "*", settings.scenario)
    if result:
        raise UsageError(f"--user-conf {settings.user_conf}: LoadGen cannot read it, its code is {result}")


def run_test(
    sut: Any,
    samples: LoadedSamples,
    data: DataSet,
    performance_count: int,
    made: Any,
    folder: Path,
    *,
    trace: bool,
    fail: Callable[[Exception], NoReturn],
) -> None:
    """Run a test; its logs are in the folder then. Returns when LoadGen has all answers.

    Args:
        sut: with `issue` and `flush`.
        performance_count: how many samples LoadGen may hold in memory.
        trace: write its trace log.
        fail: what a callback raises is passed to it. It must not return: an exception in LoadGen crashes the process.
    """

    def guarded(callback: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except Exception as error:
                fail(error)

        return call

    lg = loadgen()
    logs = lg.LogSettings()
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False
    logs.enable_trace = trace
    made_sut = lg.ConstructSUT(guarded(sut.issue), guarded(sut.flush))
    unload = guarded(lambda _: samples.unload())
    made_qsl = lg.ConstructQSL(data.count, performance_count, guarded(samples.load), unload)
    lg.StartTestWithLogSettings(made_sut, made_qsl, made, logs)
    lg.DestroyQSL(made_qsl)
    lg.DestroySUT(made_sut)
