"""A run whose traces and telemetry are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from perfharness.model import conventions
from perfharness.model.manifest import MANIFEST_NAME, EnvironmentRecord, GpuRecord
from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness.telemetry.store import write_sample_log
from tests.support.sample_builder import SampleBuilder
from tests.support.simulated_sensors import Load, Sensor
from tests.support.trace_builder import TraceBuilder
from tests.unit.run_records import manifest_of, process

MS = 1_000_000
S = 1_000 * MS
T0 = 1_700_000_000 * S
IDLE_W, MATMUL_W, COPY_W, AWAKE_W = 75.0, 600.0, 250.0, 110.0
BATCHES = 20
IDLE_S = 4.0


class MadeUpRun:
    """Batches of 900 ms matmul, 600 ms copy and 500 ms without GPU work, after four idle seconds; sensors beside it.

    Every part varies by a tenth, as real ones do: batches of exactly 2 s would be in step with the sensor.
    """

    def __init__(self, folder: Path, processes: tuple[tuple[str, str], ...] = (("proc_0_gpu_0", "GPU-a"),)) -> None:
        self.folder = folder
        self.processes = processes
        random = np.random.default_rng(4)
        parts = np.tile([900, 600, 500], (BATCHES, 1)) * random.uniform(0.9, 1.1, (BATCHES, 3))
        lengths = np.round(parts * MS).astype(np.int64)
        self.edges = np.r_[0, np.cumsum(lengths)] + T0 + S
        self.truth = dict(
            zip(("matmul", "copy", "waiting"), (lengths / S).sum(axis=0) * (MATMUL_W, COPY_W, AWAKE_W), strict=True)
        )
        power = np.tile([MATMUL_W, COPY_W, AWAKE_W], BATCHES)
        self.load = Load(np.r_[T0 - 9 * S, self.edges, self.edges[-1] + 9 * S], np.r_[IDLE_W, power, IDLE_W])
        self.log = SampleBuilder(idle_start_unix_ns=T0 - round(IDLE_S * S) - S // 2, idle_end_unix_ns=T0 - S // 2)

    def write_traces(self) -> None:
        for folder, uuids in self.processes:
            builder = TraceBuilder(gpu=False)
            for number, uuid in enumerate(uuids.split(",")):
                builder.row("TARGET_INFO_GPU", id=number, name="Test GPU", uuid=uuid.partition("-")[2])
            builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=T0)
            builder.mark(conventions.MARK_RECORDER, 0, domain="perfharness", category="toy")
            for index in range(len(self.edges) // 3):
                first, second, third, end = (int(edge) - T0 for edge in self.edges[3 * index : 3 * index + 4])
                builder.range("batch", first, end - 1, domain="perfharness", category="toy", payload=index)
                for name, start, stop in (
                    ("matmul", first, second),
                    ("copy", second, third),
                    ("decode", third, end - 2),
                ):
                    builder.range(name, start + 1, stop - 1, domain="perfharness", category="toy")
                    if name != "decode":
                        device = int("," in uuids and name == "copy")
                        builder.kernel((start + 2, start + 3), (start, stop), device=device)
                builder.mark(conventions.MARK_ITEMS, end - 2, domain="perfharness", category="toy", payload=8)
            (self.folder / folder).mkdir(parents=True)
            builder.write(self.folder / folder / "trace.sqlite")

    def sample(
        self, uuid: str, *, throttled_s: tuple[float, float] | None = None, busy: bool = True, poll_ms: int = 50,
    ) -> None:  # fmt: skip
        """Sensors of one GPU, all polled at one pace: counter, power, clocks, utilisation."""
        polls = np.arange(T0 - 8 * S, self.edges[-1] + 4 * S, poll_ms * MS, dtype=np.int64)
        load = self.load if busy else Load(self.load.edge_ns[[0, -1]], np.asarray([IDLE_W]))
        sensor = Sensor(phase_ns=13 * MS, noise=0.005)
        counter, power = sensor.counter_mj(load, polls), sensor.power_mw(load, polls)
        updated = np.r_[True, np.diff((polls - T0 - sensor.phase_ns) // sensor.period_ns) > 0].tolist()
        self.log.subject(uuid, "gpu", name="NVIDIA H200", gpu_index=0)
        for metric, values in (("energy_total_mj", counter), ("power_instant_mw", power)):
            self.log.readings(uuid, metric, polls.tolist(), values.tolist(), is_new=updated, update_period_ns=100 * MS)
        running = (polls > self.edges[0]) & (polls < self.edges[-1]) & busy
        reasons = np.where(running, 0, 1)
        clock = np.where(running, 1980.0, 345.0)
        if throttled_s is not None:
            inside = (polls > self.edges[0] + throttled_s[0] * S) & (polls < self.edges[0] + throttled_s[1] * S)
            reasons, clock = np.where(inside, 4, reasons), np.where(inside, 1700.0, clock)
        for name, column in (
            ("gpu_utilization_percent", np.where(running, 80, 0)),
            ("clock_event_reasons", reasons),
            ("sm_clock_mhz", clock),
            ("power_limit_mw", np.full(len(polls), 700e3)),
        ):
            self.log.readings(uuid, name, polls.tolist(), column.tolist())

    def write(self, **changes: Any) -> None:
        """Write all. `changes`: of the manifest."""
        self.write_traces()
        write_sample_log(self.folder / TELEMETRY_NAME, self.log.build())
        uuids = list(dict.fromkeys(uuid for _, given in self.processes for uuid in given.split(",")))
        processes = [
            process(
                index, gpu_uuid=given.split(",")[0], gpu_uuids=given.split(",") if "," in given else [], folder=folder,
                start_unix_ns=T0, duration_s=float(self.edges[-1] - T0) / S + 1,
            )
            for index, (folder, given) in enumerate(self.processes)
        ]  # fmt: skip
        gpus = [GpuRecord(index=0, uuid=uuid, name="NVIDIA H200") for uuid in uuids]
        manifest = manifest_of(*processes, **{"environment": EnvironmentRecord(gpus=gpus), **changes})
        (self.folder / MANIFEST_NAME).write_text(manifest.model_dump_json())

    def truth_j(self, first: int = 1, last: int = -1) -> float:
        """Energy of the batches from the first to before the last."""
        return float(
            self.load.energy_j(int(self.edges[3 * first]), int(self.edges[3 * last - 1 if last < 0 else 3 * last]))
        )
