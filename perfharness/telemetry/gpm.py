"""Hardware counters without privileges: NVML's GPU Performance Monitoring (GPM; Hopper and newer).

The driver computes means between two opaque samples, whose values it refreshes periodically (every 100 ms on an H200).
Two samples without a refresh in between give mostly zeros, so the first sample is kept until a refresh.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

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
"""Suffix of each metric's name in NVML (`NVML_GPM_METRIC_…`)."""

PERIOD_NS = 50_000_000
"""Taking a sample takes 65 to 105 us (H100), or 200 us and occasionally 4 ms (H200)."""


class GpmCounters:
    """Means of the counters of a GPU or MIG instance since the previous reading."""

    def __init__(self, device: Device, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._questions, self._device, self._nvml, self._clock_ns = Questions(device), device, device.nvml, clock_ns
        ids = {name: getattr(self._nvml, f"NVML_GPM_METRIC_{end}", None) for name, end in COUNTERS.items()}
        self._ids = {name: number for name, number in ids.items() if number is not None}
        self._has_begun = False
        """Whether `_first` has the first sample of the next means."""
        self._instance: int | None = None
        """Number of the MIG instance on its GPU; None for a whole GPU."""
        self._problem = self._prepare()

    def _prepare(self) -> Answer | None:
        """Allocate two samples; returns the reason if the counters are unavailable."""
        support = self._device.gpu.ask("nvmlGpmQueryDeviceSupport")
        if not support.ok:
            return support
        if not support.value.isSupportedDevice:
            return Answer(None, Refusal.NOT_SUPPORTED, "GPM needs Hopper or later")
        number = self._device.ask("nvmlDeviceGetGpuInstanceId") if self._device.is_mig else Answer()
        # Freed only with the process, because a hanging reading may use them after NVML is closed.
        answers = [number, *(ask(self._nvml, "nvmlGpmSampleAlloc") for _ in range(2))]
        self._instance, self._first, self._second = (answer.value for answer in answers)
        return next((answer for answer in answers if not answer.ok), None)

    def read(self) -> Values:
        """Means since the first sample, if there was a refresh."""
        if self._problem is not None:
            failed, self._ids = self._failed(self._problem), {}
            return failed
        began_ns = self._clock_ns()
        sample = self._second if self._has_begun else self._first
        if self._instance is None:
            answer = self._device.ask("nvmlGpmSampleGet", sample)
        else:
            answer = self._device.gpu.ask("nvmlGpmMigSampleGet", self._instance, sample)
        taken_ns = (began_ns + self._clock_ns()) // 2
        if not answer.ok:
            self._has_begun = False
            return self._failed(answer)
        if not self._has_begun:
            self._has_begun = True
            return {}
        means = self._means()
        if isinstance(means, Answer):
            return self._failed(means)
        if means is None:
            return {}
        self._first, self._second = self._second, self._first
        values = {metric: self._questions.value(metric, mean) for metric, mean in means.items()}
        return {
            (self._device.uuid, metric): value if isinstance(value, str) else [(taken_ns, value)]
            for metric, value in values.items()
        }

    def _means(self) -> dict[str, Answer] | Answer | None:
        """Means between the two samples; None without a refresh; or the refusal.

        Without a refresh each value is 0 or not a number. An idle GPU has some PCIe traffic; else the window only gets
        longer.
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
        names = self._questions.wanted(self._ids)
        return {(self._device.uuid, name): self._questions.value(name, answer) for name in names}


def _mean(nvml: Any, metric: Any) -> Answer:
    if metric.nvmlReturn:
        return refused(nvml, int(metric.nvmlReturn))
    if not math.isfinite(metric.value):
        return Answer(None, Refusal.OTHER, "the driver returned no number")
    return Answer(metric.value)
