"""Counters inside the GPU, without privileges: NVML's GPU Performance Monitoring (GPM; Hopper and later).

The driver hands out opaque samples; what the GPU did between any two of them can be asked for afterwards. It refreshes
what it samples now and then (an H200: every 100 ms): two samples without a refresh between them have no time between
them, and the driver gives zeros for most counters then. Such a pair is no reading: the first sample is kept until a
refresh was found, so that each reading is the mean over the time between two refreshes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfharness.model.telemetry import GPM_EDGE_ERROR, GPM_WINDOW
from perfharness.telemetry.gpu import NvmlSource
from perfharness.telemetry.nvml import NOT_ASKED, Answer, Device, Refusal, ask, refused
from perfharness.telemetry.source import Metric, SamplerContext, Tape

COUNTERS: Mapping[str, tuple[str, str]] = {
    "gpm_sm_active_percent": ("SM_UTIL", "multiprocessors with work"),
    "gpm_sm_occupancy_percent": ("SM_OCCUPANCY", "resident warps, of as many as can be"),
    "gpm_tensor_percent": ("ANY_TENSOR_UTIL", "cycles in which the tensor cores worked, on any type"),
    "gpm_tensor_hmma_percent": ("HMMA_TENSOR_UTIL", "the same: half precision and similar (HMMA)"),
    "gpm_tensor_imma_percent": ("IMMA_TENSOR_UTIL", "the same: integers (IMMA)"),
    "gpm_tensor_dmma_percent": ("DMMA_TENSOR_UTIL", "the same: double precision (DMMA)"),
    "gpm_tensor_dfma_percent": ("DFMA_TENSOR_UTIL", "the same: double precision (DFMA)"),
    "gpm_fp64_percent": ("FP64_UTIL", "cycles in which the fp64 pipe worked, without tensor cores"),
    "gpm_fp32_percent": ("FP32_UTIL", "cycles in which the fp32 pipe worked"),
    "gpm_fp16_percent": ("FP16_UTIL", "cycles in which the fp16 pipe worked, without tensor cores"),
    "gpm_integer_percent": ("INTEGER_UTIL", "cycles in which the integer pipe worked"),
    "gpm_dram_percent": ("DRAM_BW_UTIL", "bandwidth of the GPU's memory in use"),
    "gpm_pcie_rx_mib_per_s": ("PCIE_RX_PER_SEC", "received over PCIe"),
    "gpm_pcie_tx_mib_per_s": ("PCIE_TX_PER_SEC", "sent over PCIe"),
    "gpm_nvlink_rx_mib_per_s": ("NVLINK_TOTAL_RX_PER_SEC", "received over NVLink, all links"),
    "gpm_nvlink_tx_mib_per_s": ("NVLINK_TOTAL_TX_PER_SEC", "sent over NVLink, all links"),
}
"""Of each metric the end of its name in NVML (`NVML_GPM_METRIC_…`), and what it is."""

EARLY = 0.97
"""Of the time between refreshes: then the next one is looked for."""

POLL_S, MOST_POLLS = 0.001, 12
"""How closely, and how often in a tick at most."""

NO_GPM = "this GPU has no performance monitoring (GPM) for users: Hopper and later have"
NO_NUMBER = "the driver gave no number"


@dataclass
class _Sampled:
    """The samples of a device: the one that a window begins with, and one for its end."""

    device: Device
    first: Any
    second: Any
    instance: int | None
    """Number of the GPU instance on its GPU; None: the whole GPU."""
    begun_ns: int | None = None
    """When `first` was taken; None: not yet."""
    is_refresh: bool = False
    """Whether `first` was taken right after a refresh was found."""
    last_ns: int = 0
    """When the last sample was taken, with a refresh or without."""
    error_ns: int = 0
    """How far `begun_ns` may be from the refresh."""
    shortest_ns: int = 0
    """Refreshes are at least so far apart; 0: not known, so that each tick takes one sample."""

    def take(self) -> Answer:
        """Let the driver fill in the next of the two."""
        sample = self.first if self.begun_ns is None else self.second
        if self.instance is None:
            return self.device.ask("nvmlGpmSampleGet", sample)
        return ask(self.device.nvml, "nvmlGpmMigSampleGet", self.device.gpu.handle, self.instance, sample, mig=True)


class GpmSource(NvmlSource):
    """What the multiprocessors, the memory and the links did since the refresh before, of GPUs and MIG instances."""

    name = "gpm"
    metrics = (
        Metric(GPM_WINDOW, "length of the time before the reading that the other `gpm_` metrics are means over", "gpu",
               computed=True),
        Metric(GPM_EDGE_ERROR, "how far the end of that time may be from the reading", "gpu", computed=True),
        *(Metric(name, meaning, "gpu", computed=True) for name, (_, meaning) in COUNTERS.items()),
    )  # fmt: skip
    period_limits_ns = (20_000_000, 20_000_000)
    """So close a refresh is found. Taking a sample takes 65 to 105 us (H100), 200 us and now and then 4 ms (H200)."""

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        self._ids = {name: getattr(self.nvml, f"NVML_GPM_METRIC_{end}", None) for name, (end, _) in COUNTERS.items()}
        self._refused: list[tuple[Device, Answer]] = []
        self._sampled: list[_Sampled] = []
        for device in self.devices:
            problem = self._prepare(device)
            if problem is not None:
                self._refused.append((device, problem))

    def _prepare(self, device: Device) -> Answer | None:
        """Get two samples ready; or why there is nothing to be had of a device."""
        support = device.gpu.ask("nvmlGpmQueryDeviceSupport")
        if not support.ok:
            return support
        if not support.value.isSupportedDevice:
            return Answer(None, Refusal.NOT_SUPPORTED, NO_GPM, NOT_ASKED)
        number = device.ask("nvmlDeviceGetGpuInstanceId") if device.is_mig else Answer()
        made = [ask(self.nvml, "nvmlGpmSampleAlloc") for _ in range(2)]
        problem = next((answer for answer in (number, *made) if not answer.ok), None)
        if problem is not None:
            for answer in made:
                if answer.ok:
                    ask(self.nvml, "nvmlGpmSampleFree", answer.value)
            return problem
        # They are freed with the process: NVML is closed, and open, for as long as the sampler runs.
        first, second = (answer.value for answer in made)
        self._sampled.append(_Sampled(device, first, second, number.value))
        return None

    def read(self, tape: Tape) -> None:
        """The means since the refresh before, if there was another one. Each device has its own window."""
        for device, answer in self._refused:
            self._fail(tape, device, answer)
        self._refused = []
        for sampled in self._sampled:
            if self._wait(tape, sampled):
                for _ in range(MOST_POLLS):
                    if self._read(tape, sampled):
                        break
                    time.sleep(POLL_S)

    def _wait(self, tape: Tape, sampled: _Sampled) -> bool:
        """Wait until shortly before a refresh is due; False where none is due before the next tick."""
        if not sampled.shortest_ns or sampled.begun_ns is None:
            return True
        due_ns = sampled.begun_ns - sampled.error_ns + EARLY * sampled.shortest_ns
        early_s = (due_ns - tape.now_ns()) / 1e9
        if early_s >= self.period_ns / 1e9:
            return False
        time.sleep(max(early_s, 0.0))
        return True

    def _read(self, tape: Tape, sampled: _Sampled) -> bool:
        """Take a sample; whether there is no reason to take another one at once."""
        with tape.reading():
            answer = sampled.take()
        taken_ns, before_ns = tape.read_at_ns, sampled.last_ns
        sampled.last_ns = taken_ns
        if not answer.ok:
            self._fail(tape, sampled.device, answer)
            sampled.begun_ns = None  # the next sample begins a window
            return True
        if sampled.begun_ns is None:
            sampled.begun_ns, sampled.is_refresh = taken_ns, False
            return True
        # The refresh was between the sample before and this one.
        refreshed_ns, error_ns = (before_ns + taken_ns) // 2, (taken_ns - before_ns) // 2
        window_ns = refreshed_ns - sampled.begun_ns
        if not self._write_means(tape, sampled, window_ns, refreshed_ns, error_ns):
            return not sampled.shortest_ns
        if error_ns > self.period_ns:  # it was looked for too late
            sampled.shortest_ns = 0
        elif sampled.is_refresh:
            sampled.shortest_ns = max(sampled.shortest_ns, window_ns - error_ns - sampled.error_ns)
        sampled.begun_ns, sampled.error_ns, sampled.is_refresh = refreshed_ns, error_ns, True
        sampled.first, sampled.second = sampled.second, sampled.first
        return True

    def _write_means(self, tape: Tape, sampled: _Sampled, window_ns: int, refreshed_ns: int, error_ns: int) -> bool:
        """Write what lies between the two samples; whether a window ended."""
        uuid = sampled.device.uuid
        names = [name for name, number in self._ids.items() if number is not None and (uuid, name) not in self._retired]
        if not names:
            return True
        request = self.nvml.c_nvmlGpmMetricsGet_t(
            version=self.nvml.NVML_GPM_METRICS_GET_VERSION,
            numMetrics=len(names),
            sample1=sampled.first,
            sample2=sampled.second,
        )
        for place, name in enumerate(names):
            request.metrics[place].metricId = self._ids[name]
        answer = ask(self.nvml, "nvmlGpmMetricsGet", request)
        if not answer.ok:
            self._fail(tape, sampled.device, answer)
            return True
        if not _is_refreshed(request.metrics[: len(names)]):
            return False
        if not sampled.is_refresh:  # how long before its first sample the window began is not known
            return True
        tape.write(uuid, GPM_WINDOW, float(window_ns), at_ns=refreshed_ns)
        tape.write(uuid, GPM_EDGE_ERROR, float(error_ns), at_ns=refreshed_ns)
        for place, name in enumerate(names):
            found = _answer_of(request.metrics[place], sampled.device)
            if found.ok:
                tape.write(uuid, name, found.value, at_ns=refreshed_ns)
            else:
                self._write(tape, sampled.device, name, found, float)
        return True

    def _fail(self, tape: Tape, device: Device, answer: Answer) -> None:
        for metric in (GPM_WINDOW, GPM_EDGE_ERROR, *self._ids):
            if (device.uuid, metric) not in self._retired:
                self._write(tape, device, metric, answer, float)


def _is_refreshed(metrics: Sequence[Any]) -> bool:
    """Whether the driver counted anything between the samples: without a refresh no cycle passed, and each value is 0
    or no number. An idle GPU has some traffic over PCIe at least; where it has none, the window only grows longer.
    """
    return any(math.isfinite(metric.value) and metric.value != 0 for metric in metrics if not metric.nvmlReturn)


def _answer_of(metric: Any, device: Device) -> Answer:
    """One of the means, or why there is none."""
    if metric.nvmlReturn:
        return refused(int(metric.nvmlReturn), mig=device.is_mig)
    if not math.isfinite(metric.value):
        return Answer(None, Refusal.NO_DATA, NO_NUMBER, NOT_ASKED)
    return Answer(float(metric.value))
