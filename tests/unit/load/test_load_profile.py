"""What is asked for, and when it is due."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.load.http_settings import HttpSettings, http_settings
from perfharness.load.profile import MixEntry, Phase, Profile, checked_profile, profile_of
from perfharness.load.schedule import arrival_times_s, arrivals_of, read_arrivals


def times(**settings: Any) -> np.ndarray[Any, Any]:
    return arrival_times_s(Phase(**settings), np.random.default_rng(1))


def test_constant_arrivals_are_evenly_apart() -> None:
    np.testing.assert_allclose(times(duration_s=2, rate=5), np.arange(10) / 5)


def test_poisson_arrivals_have_exponential_gaps_and_the_rate() -> None:
    found = times(duration_s=1000, rate=20, arrivals="poisson")
    assert abs(len(found) - 20_000) < 4 * 20_000**0.5
    from scipy import stats  # takes long to import

    assert stats.kstest(np.diff(found), stats.expon(scale=1 / 20).cdf).pvalue > 0.001


def test_bursts_arrive_together_at_the_rate() -> None:
    found = times(duration_s=1000, rate=20, arrivals="bursty", burst=4)
    moments, sizes = np.unique(found, return_counts=True)
    assert set(sizes) == {4}
    assert abs(len(moments) - 5000) < 4 * 5000**0.5


def test_a_ramp_has_as_many_as_its_area() -> None:
    found = times(duration_s=10, rate=10, rate_to=30)
    assert len(found) == 200
    # 10 t + t^2 arrivals up to t
    np.testing.assert_allclose(10 * found + found**2, np.arange(200), atol=0.01)


def test_a_file_has_the_times_of_arrivals(tmp_path: Path) -> None:
    file = tmp_path / "times.txt"
    file.write_text("0.5\n0.25\n\n3\n")
    assert read_arrivals(file).tolist() == [0.25, 0.5, 3.0]
    assert times(duration_s=1, times_file=file).tolist() == [0.25, 0.5]


@given(st.integers(1, 5), st.integers(0, 10_000))
def test_processes_share_the_arrivals_of_one(processes: int, seed: int) -> None:
    mix = [{"name": "a", "weight": 3}, {"name": "b", "items": 8}]
    profile = checked_profile(
        {"phases": [{"duration": "2s", "rate": 30, "arrivals": "poisson"}], "mix": mix, "seed": seed}
    )
    whole = arrivals_of(profile, 0, 100)
    shares = [arrivals_of(profile, 0, 100, one, processes) for one in range(processes)]
    assert sorted(np.concatenate([share.ids for share in shares])) == whole.ids.tolist()
    assert whole.ids.tolist() == list(range(100, whole.next_id))
    found = {int(one): (int(at), int(kind)) for share in shares
             for one, at, kind in zip(share.ids, share.offsets_ns, share.kinds, strict=True)}  # fmt: skip
    expected = zip(whole.ids.tolist(), whole.offsets_ns.tolist(), whole.kinds.tolist(), strict=True)
    assert found == {one: (at, kind) for one, at, kind in expected}


def test_weights_of_a_mix() -> None:
    mix = [{"name": "a", "weight": 3}, {"name": "b", "weight": 1}]
    found = arrivals_of(checked_profile({"phases": [{"duration": 100, "rate": 100}], "mix": mix}), 0)
    assert abs((found.kinds == 0).mean() - 0.75) < 4 * (0.75 * 0.25 / 10_000) ** 0.5


def test_options_and_a_file_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "load.toml"
    file.write_text(
        '[load]\nconcurrency = 2\nobjective = "p95=50ms"\nrequest-timeout = "2s"\n'
        '[[load.phases]]\nname = "warm-up"\nduration = "500ms"\nrate = 5\nwarmup = true\n'
        '[[load.phases]]\nname = "load"\nduration = "1m"\nrate = 5\n'
    )
    options = {"concurrency": 2, "objective": "p95=50ms", "request_timeout_s": "2s"}
    given_ = {**options, "rate": 5.0, "duration_s": "1m", "warmup_s": "500ms"}
    assert profile_of({}, file) == profile_of(given_)
    assert profile_of({"seed": 3}, file).seed == 3
    assert checked_profile(profile_of({}, file).to_json()) == profile_of({}, file)


@pytest.mark.parametrize("rates", ["10,20,40", [10, 20, 40]])
def test_several_rates_are_phases(rates: Any) -> None:
    profile = profile_of({"rates": rates, "arrivals": "poisson", "duration_s": "5s", "warmup_s": "1s"})
    assert [(one.name, one.rate, one.duration_s, one.arrivals) for one in profile.phases] == [
        ("warm-up", 10, 1, "poisson"),
        ("10/s", 10, 5, "poisson"),
        ("20/s", 20, 5, "poisson"),
        ("40/s", 40, 5, "poisson"),
    ]
    assert profile.uncounted == {"warm-up"}


@pytest.mark.parametrize(
    ("text", "limit_ms", "percentile", "errors"),
    [
        ("50ms", 50.0, 99.0, None),
        ("p99<=20ms", 20.0, 99.0, None),
        ("p99.9 < 1s, errors<=0.5%", 1000.0, 99.9, 0.005),
        ("p50=10ms,errors=0", 10.0, 50.0, 0.0),
    ],
)
def test_objectives(text: str, limit_ms: float, percentile: float, errors: float | None) -> None:
    found = profile_of({"objective": text}).objective
    assert found is not None
    assert (found.latency_ms, found.percentile) == (limit_ms, percentile)
    assert found.max_error_rate == (None if errors is None else pytest.approx(errors))


def test_the_profile_in_the_documentation_has_every_setting() -> None:
    file = Path(__file__).parents[3] / "docs" / "examples" / "load.toml"
    aliases = [field.alias for kind in (Profile, Phase, MixEntry, HttpSettings) for field in kind.model_fields.values()]
    assert {str(alias) for alias in aliases} - set(re.findall(r"[\w-]+", file.read_text("utf-8"))) == {"url"}
    assert [phase.loop for phase in profile_of({}, file).phases] == ["open", "open", "closed"]
    assert http_settings("http://localhost/", file).read_timeout_s == 30
