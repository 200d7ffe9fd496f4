"""Counters inside the GPU, without privileges: NVML's GPU Performance Monitoring (GPM; Hopper and later).

The driver hands out opaque samples; what the GPU did between any two of them can be asked for afterwards. It refreshes
what it samples now and then (an H200: every 100 ms): two samples without a refresh between them have no time between
them, and the driver gives zeros for most counters then. Such a pair is not a reading: the first sample is kept until a
refresh was found, so that each reading is the mean over the time between two refreshes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from perfharness.model.telemetry import GPM_EDGE_ERROR, GPM_WINDOW
from perfharness.telemetry.gpu import Questions
from perfharness.telemetry.nvml import Answer, Device, Refusal, ask, refused
from perfharness.telemetry.readings import Values

COUNTERS: Mapping[str, str] = {
    "gpm_sm_active_percent": "SM_UTIL",
    "gpm_sm_occupancy_percent": "SM_OCCUPANCY",
    "gpm_tensor_percent": "ANY_TENSOR_UTIL",
    "gpm_tensor_hmma_percent": "HMMA_TENSOR_UTIL",
    "gpm_tensor_imma_percent": "IMMA_TENSOR_UTIL",
    "gpm_tensor_dmma_percent": "DMMA_TENSOR_UTIL",
    "gpm_tensor_dfma_percent": "DFMA_TENSOR_UTIL",
    "gpm_fp64_percent": "FP64_UTIL",
    "gpm_fp32_percent": "FP32_UTIL",
    "gpm_fp16_percent": "FP16_UTIL",
    "gpm_integer_percent": "INTEGER_UTIL",
    "gpm_dram_percent": "DRAM_BW_UTIL",
    "gpm_pcie_rx_mib_per_s": "PCIE_RX_PER_SEC",
    "gpm_pcie_tx_mib_per_s": "PCIE_TX_PER_SEC",
    "gpm_nvlink_rx_mib_per_s": "NVLINK_TOTAL_RX_PER_SEC",
    "gpm_nvlink_tx_mib_per_s": "NVLINK_TOTAL_TX_PER_SEC",
}
"""The end of each metric's name in NVML (`NVML_GPM_METRIC_…`)."""

PERIOD_NS = 20_000_000
"""So close a refresh is found. Taking a sample takes 65 to 105 us (H100), 200 us and now and then 4 ms (H200)."""

EARLY = 0.97
"""Share of the time between refreshes after which the next one is looked for."""

POLL_S, MOST_POLLS = 0.001, 12
"""How closely, and how often in a reading at most."""


class GpmCounters:
    """What the multiprocessors, the memory and the links of a GPU or MIG instance did since the refresh before.

    Args:
        clock_ns: monotonic.
    """

    def __init__(self, device: Device, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._questions, self._device, self._nvml, self._clock_ns = Questions(device), device, device.nvml, clock_ns
        ids = {name: getattr(self._nvml, f"NVML_GPM_METRIC_{end}", None) for name, end in COUNTERS.items()}
        self._ids = {name: number for name, number in ids.items() if number is not None}
        self._begun_ns: int | None = None
        """When the window began: at a refresh or, if not `_is_refresh`, at the first sample; None: not yet."""
        self._is_refresh = False
        self._error_ns = 0
        """How far that may be from the refresh."""
        self._last_ns = 0
        """When the last sample was taken, with a refresh or without."""
        self._shortest_ns = 0
        """Refreshes are at least so far apart; 0: not known, so that each reading takes one sample."""
        self._instance: int | None = None
        """Number of the MIG instance on its GPU; None: the whole GPU."""
        self._problem = self._prepare()
        self._is_over = False

    def _prepare(self) -> Answer | None:
        """Get two samples ready; returns why there is nothing to be had."""
        support = self._device.gpu.ask("nvmlGpmQueryDeviceSupport")
        if not support.ok:
            return support
        if not support.value.isSupportedDevice:
            return Answer(None, Refusal.NOT_SUPPORTED, "GPM needs Hopper or later")
        number = self._device.ask("nvmlDeviceGetGpuInstanceId") if self._device.is_mig else Answer()
        # They are freed with the process: a reading that hangs may still use them when NVML is closed.
        answers = [number, *(ask(self._nvml, "nvmlGpmSampleAlloc") for _ in range(2))]
        self._instance, self._first, self._second = (answer.value for answer in answers)
        return next((answer for answer in answers if not answer.ok), None)

    def read(self) -> Values:
        """The means since the refresh before, if there was another one."""
        if self._problem is not None:
            is_over, self._is_over = self._is_over, True
            return {} if is_over else self._failed(self._problem)
        if not self._wait():
            return {}
        for _ in range(MOST_POLLS):
            values = self._sample()
            if values is not None:
                return values
            time.sleep(POLL_S)
        return {}

    def _wait(self) -> bool:
        """Wait until shortly before a refresh is due; False if none is due before the next reading."""
        if not self._shortest_ns or self._begun_ns is None:
            return True
        due_ns = self._begun_ns - self._error_ns + EARLY * self._shortest_ns
        early_ns = due_ns - self._clock_ns()
        if early_ns < PERIOD_NS:
            time.sleep(max(early_ns, 0.0) / 1e9)
        return early_ns < PERIOD_NS

    def _sample(self) -> Values | None:
        """Take a sample; returns what was read; None: take another one at once, for a refresh is due."""
        began_ns = self._clock_ns()
        answer = self._take(self._first if self._begun_ns is None else self._second)
        taken_ns, before_ns = (began_ns + self._clock_ns()) // 2, self._last_ns
        self._last_ns = taken_ns
        if not answer.ok:
            self._begun_ns = None  # the next sample begins a window
            return self._failed(answer)
        if self._begun_ns is None:
            self._begun_ns, self._is_refresh = taken_ns, False
            return {}
        means = self._means()
        if isinstance(means, Answer):
            return self._failed(means)
        if means is None:
            return None if self._shortest_ns else {}
        # The refresh was between the sample before and this one.
        refreshed_ns, error_ns = (before_ns + taken_ns) // 2, (taken_ns - before_ns) // 2
        window_ns = refreshed_ns - self._begun_ns
        values: Values = {}
        if self._is_refresh:  # else it is not known how long before its first sample the window began
            for metric, found in {**means, GPM_WINDOW: Answer(window_ns), GPM_EDGE_ERROR: Answer(error_ns)}.items():
                value = self._questions.value(metric, found)
                values[self._device.uuid, metric] = value if isinstance(value, str) else [(refreshed_ns, value)]
        if error_ns > PERIOD_NS:  # it was looked for too late
            self._shortest_ns = 0
        elif self._is_refresh:
            self._shortest_ns = max(self._shortest_ns, window_ns - error_ns - self._error_ns)
        self._begun_ns, self._error_ns, self._is_refresh = refreshed_ns, error_ns, True
        self._first, self._second = self._second, self._first
        return values

    def _take(self, sample: Any) -> Answer:
        if self._instance is None:
            return self._device.ask("nvmlGpmSampleGet", sample)
        return self._device.gpu.ask("nvmlGpmMigSampleGet", self._instance, sample)

    def _means(self) -> dict[str, Answer] | Answer | None:
        """The means between the two samples; None: there was no refresh; or why they were refused.

        Without a refresh no cycle passed, and each value is 0 or no number. An idle GPU has some traffic over PCIe at
        least; if it has none, the window only grows longer.
        """
        nvml, names = self._nvml, self._questions.wanted(self._ids)
        request = nvml.c_nvmlGpmMetricsGet_t(
            version=nvml.NVML_GPM_METRICS_GET_VERSION,
            numMetrics=len(names),
            sample1=self._first,
            sample2=self._second,
        )
        for place, name in enumerate(names):
            request.metrics[place].metricId = self._ids[name]
        answer = ask(nvml, "nvmlGpmMetricsGet", request)
        if not answer.ok:
            return answer
        means = {name: _mean(nvml, metric) for name, metric in zip(names, request.metrics, strict=False)}
        return means if any(mean.value for mean in means.values()) else None

    def _failed(self, answer: Answer) -> Values:
        names = self._questions.wanted([GPM_WINDOW, GPM_EDGE_ERROR, *self._ids])
        return {(self._device.uuid, name): self._questions.value(name, answer) for name in names}


def _mean(nvml: Any, metric: Any) -> Answer:
    if metric.nvmlReturn:
        return refused(nvml, int(metric.nvmlReturn))
    if not math.isfinite(metric.value):
        return Answer(None, Refusal.OTHER, "the driver gave no number")
    return Answer(metric.value)
