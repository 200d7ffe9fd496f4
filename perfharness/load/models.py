"""A model in one of the inference backends as target: one session per worker."""

from __future__ import annotations

import os
from typing import Any

from pydantic import Field

from perfharness.backends import Device, DeviceChoice, Session, backend, device_for, model_source
from perfharness.bench.inputs import input_arrays, input_shapes
from perfharness.bench.spec import CaseSpec
from perfharness.errors import UsageError
from perfharness.load.callables import CallableTarget, Inputs
from perfharness.load.profile import Profile
from perfharness.load.request import LoadRequest
from perfharness.model.base import Settings
from perfharness.model.bench import BenchCase, Precision
from perfharness.recorder import PerfRecorder

STEPS = ("copy_in", "execute", "copy_out", "synchronize")


class ModelSpec(Settings):
    """How a model is run; `shapes` as in `CaseSpec.inputs`."""

    backend: str
    mode: str = ""
    device: DeviceChoice = "auto"
    precision: Precision = "fp32"
    shapes: dict[str, tuple[int | str, ...]] = Field(default_factory=dict)

    def device_of(self, *, has_gpu: bool) -> Device:
        """The device for a process with or without a GPU."""
        return device_for(self.device, backend(self.backend), self.mode, has_gpu=has_gpu)

    def case_spec(self, model: str, device: Device, batch_size: int, **more: Any) -> CaseSpec:
        """The model as a case of `bench`; `more` are fields of `CaseSpec`."""
        case = BenchCase(
            case_id="load",
            model=model,
            backend=self.backend,
            mode=self.mode,
            precision=self.precision,
            device=device,
            batch_size=batch_size,
        )
        return CaseSpec(case=case, model=model, inputs=self.shapes, **more)


class BackendTarget(CallableTarget):
    """A session for each batch size of the mix; each call is one round, a batch of the trace.

    Args:
        profile: its mix has the batch sizes, and the inputs (`.npz`); inputs without a file are seeded random values.
    """

    def __init__(self, model: str, spec: ModelSpec, profile: Profile, recorder: PerfRecorder) -> None:
        super().__init__(self._round, recorder, Inputs(()), profile.uncounted)
        self._model, self._spec, self._profile = model, spec, profile
        self._sessions: dict[str | None, Session] = {}

    def open(self) -> None:
        """Load the model, allocate, write the inputs, and run one round: some frameworks compile in it."""
        made, source, seed = backend(self._spec.backend), model_source(self._model), self._profile.seed
        device = self._spec.device_of(has_gpu=bool(os.environ.get("CUDA_VISIBLE_DEVICES")))
        for entry in self._profile.mix or (None,):
            name, items, file = (entry.name, entry.items, entry.input) if entry else (None, 1, None)
            asked = self._spec.case_spec(self._model, device, items, input_file=file, seed=seed)
            session = self._sessions[name] = made.load(source, asked.options)
            shapes = input_shapes(session.inputs, asked)
            session.allocate(shapes)
            session.write_inputs(input_arrays(session.inputs, shapes, asked))
            session.run_round()

    def _round(self, request: LoadRequest) -> None:
        """Copies, inference, and the wait for both."""
        session = self._sessions[request.input]
        if request.phase in self._warmup:
            session.run_round()
            return
        for step in STEPS:
            with self._recorder.range(step):
                getattr(session, step)()

    def close(self) -> None:
        """Free everything."""
        for session in self._sessions.values():
            session.close()


def check_model(model: str, spec: ModelSpec, profile: Profile) -> None:
    """Raises `UsageError` if the model or the backend does not exist, or an input is no `.npz`."""
    backend(spec.backend)
    model_source(model)
    for entry in profile.mix:
        if entry.input is not None and entry.input.suffix != ".npz":
            raise UsageError(f"input {entry.input} of a model must be an .npz with arrays by input name")
