"""Defaults of settings, and the values at which they are refused."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError, create_model
from pydantic.fields import FieldInfo

from perfharness.bench.accuracy.depth import DepthSettings
from perfharness.bench.accuracy.outputs import Tolerance
from perfharness.bench.accuracy.settings import AccuracySettings
from perfharness.bench.engines.model import CompareSettings
from perfharness.bench.spec import LatencySettings, TelemetrySettings
from perfharness.bench.suite import ConstraintsTable, MeasureTable, RunTable, SuiteBackend, SuiteModel
from perfharness.cli.stress import LoadSettings
from perfharness.cli.support.bench_options import BenchSettings
from perfharness.load.http_settings import HttpSettings
from perfharness.load.mlperf import MlperfSettings
from perfharness.load.profile import MixEntry, Phase, Profile
from perfharness_launcher.options import LaunchOptions

SETTINGS: dict[type[BaseModel], str] = {
    LaunchOptions: "num_processes=1 gpus_per_process=1 warmup_batches=1 barrier_timeout_s=300.0 measure_idle_s=1.0 "
    "cool_down_limit_s=300.0 require_exclusive=False module=False annotate_collectives=False on_demand=False "
    "trace_os=False explain=False sampling=True barrier=True nodes=False telemetry=True maximize_clocks=False "
    "history=True",
    MlperfSettings: "threads=None>=1 max_batch=None>=1 batch_timeout_ms=0.0>=0 warmup_rounds=5>=1 target_qps=None>0 "
    "target_latency_ms=None>0 min_duration_s=None>=0 max_duration_s=None>=0 min_queries=None>=1 max_queries=None>=1 "
    "samples_per_query=None>=1 seed=None>=0 samples=None>=1 performance_samples=None>=1",
    HttpSettings: "max_tokens=64>=1 stream=True expect_status=None>=100<=599 ready_timeout_s=300.0>0 "
    "connect_timeout_s=5.0>0 read_timeout_s=None>0 verify_tls=True",
    LoadSettings: "rate=None>=0 items=None>=1",
    MixEntry: "items=1>=1 weight=1.0>0",
    Phase: "rate=None>0 rate_to=None>0 burst=10>=2 concurrency=None>=1 warmup=False",
    Profile: "seed=0>=0 concurrency=1>=1<=10000 request_timeout_s=None>0 grace_s=10.0>=0 max_error_rate=None>=0<=1 "
    "error_window_s=10.0>0",
    LatencySettings: "warmup=50>=0 iterations=1000>=1 until_stable=False stable_percent=1.0>0 "
    "max_iterations=100000>=1 min_seconds=0.0>=0 max_seconds=120.0>0 device_iterations=None>=1",
    TelemetrySettings: "seconds=5.0>0 interval_ms=50.0>0 idle_seconds=0.0>=0",
    SuiteModel: "tokens_per_item=None>0",
    SuiteBackend: "threads=None>=1",
    MeasureTable: "threads=None>=1 seed=0 layer_rounds=20>=1",
    RunTable: "timeout_s=1800.0>0 shuffle=True seed=1 cool_down_c=None>0 cool_down_limit_s=300.0>=0",
    ConstraintsTable: "max_latency_ms=None>0 max_accuracy_loss=None>=0 max_energy_per_item_j=None>0",
    BenchSettings: "find_batch=False start_up=None>=1 resume=False retry_failed=False dry_run=False history=True",
    AccuracySettings: "truth_scale=1.0>0 top_k=5>=1 limit=None>=1",
    DepthSettings: "min_depth=0.001>0 max_depth=80.0>0",
    Tolerance: "absolute=0.001>=0 relative=0.001>=0",
    CompareSettings: "metric_limit=None>=1 truth_scale=1.0>0 warmup=50>=0 iterations=1000>=1 max_seconds=600.0>0 "
    "sample_interval_s=0.1>0 threads=None>=1 keep_maps=False",
}
"""Name=default, and what a value must be."""


@pytest.mark.parametrize("model", SETTINGS)
def test_defaults_and_limits(model: type[BaseModel]) -> None:
    for name, default, limits in re.findall(r"(\w+)=([^<>\s]*)(\S*)", SETTINGS[model]):
        field = model.model_fields[name]
        assert str(field.default) == default, name
        step = 1 if int in (field.annotation, *get_args(field.annotation)) else 1e-6
        for sign, limit in re.findall(r"([<>]=?)(\d+)", limits):
            edge, inwards = int(limit), step if ">" in sign else -step
            tried = {edge - inwards: False, edge: "=" in sign, edge + inwards: True}
            assert {value: is_taken(field, value) for value in tried} == tried, name


def is_taken(field: FieldInfo, value: float) -> bool:
    annotation: Any = field.annotation
    model = create_model("Model", value=(annotation, field))
    with suppress(ValidationError):
        model.model_validate({field.alias or "value": value})
        return True
    return False
