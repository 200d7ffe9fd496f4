"""Interface of inference backends: check options, and open a session for a model.

A backend is one file with a `Backend` and a `Session`, and one line in `perfharness.backends.BACKENDS`. Frameworks are
imported only inside methods, so importing `perfharness.backends` loads none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from perfharness.backends.models import ModelSource
from perfharness.backends.session import Session
from perfharness.errors import BackendError, BackendUnavailableError
from perfharness.model.bench import Precision

NUMBER = ("a whole number",)
"""Placeholder for the values of a numeric option."""

Device = Literal["cpu", "cuda"]
DeviceChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class BackendOptions:
    """How to run a model.

    Args:
        mode: one of the backend's `modes`, such as `eager`, `compile`, `cudagraph`, `xla`, or a provider's name.
        threads: host threads for backends that compute there; None for the backend's default.
        extra: options specific to this backend, by name; unknown names are errors.
        cache_dir: for engines; None for no cache.
        calibration: samples for quantising an fp32 ONNX model if the precision is int8.
    """

    device: Device = "cpu"
    precision: Precision = "fp32"
    mode: str = ""
    threads: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    cache_dir: Path | None = None
    calibration: Path | None = None


class Backend:
    """One inference framework.

    Args:
        name: as on the command line.
        modes: ways to run a model, the default first.
        precisions: supported on some device.
        suffixes: accepted model files, such as `.onnx`; `SAVED_MODEL` for a SavedModel folder.
        install: install command.
        libraries: modules with reported versions, the framework's first.
        extra: own options with possible values (the default first) or `NUMBER`; empty for any value.
    """

    name: str
    modes: tuple[str, ...]
    precisions: tuple[Precision, ...]
    suffixes: tuple[str, ...]
    install: str
    libraries: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}

    def versions(self) -> dict[str, str]:
        """Versions of the libraries in use, by name. Raises `BackendUnavailableError` if it is not installed."""
        return {name: str(imported(name, self.install).__version__) for name in self.libraries}

    def unsupported(self, options: BackendOptions) -> str | None:
        """Reason why valid options cannot run here (not installed, no GPU), or None; may raise `BackendError`."""
        del options
        return None

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """Open a session for an accepted model with supported options.

        Engines and the like are built here or in `allocate`, never in a round. Raises `BackendError` if the model
        cannot be loaded.
        """
        raise NotImplementedError

    def modes_on(self, device: Device) -> tuple[str, ...]:
        """Modes for a device, the default first; `problem` checks whether one runs here."""
        del device
        return self.modes

    def problem(self, options: BackendOptions) -> str | None:
        """Reason why these options cannot run here (not installed, no GPU, unknown mode or precision), or None."""
        if options.mode and options.mode not in self.modes:
            return f"unknown mode {options.mode!r}; known are: {', '.join(self.modes)}"
        if options.precision not in self.precisions:
            return f"it does not support {options.precision}; it supports: {', '.join(self.precisions)}"
        for name, value in options.extra.items():
            if name not in self.extra:
                return f"unknown option {name!r}; known are: {', '.join(sorted(self.extra)) or 'none'}"
            values = self.extra[name]
            if values and not (value.isdigit() if values == NUMBER else value in values):
                return f"{name} cannot be {value!r}; it can be: {', '.join(values)}"
        if options.precision == "tf32" and options.device == "cpu":
            return "a CPU has no tf32"
        try:
            return self.unsupported(options)
        except BackendError as error:
            return str(error)

    def load(self, model: ModelSource, options: BackendOptions) -> Session:
        """Load a model into a session.

        Raises `BackendUnavailableError` if `problem` gives a reason, `BackendError` if the model cannot be loaded.
        """
        if (problem := self.problem(options)) is not None:
            raise BackendUnavailableError(f"{self.name}: {problem}")
        self.check_model(model)
        return self.open(model, options)

    def check_model(self, model: ModelSource) -> None:
        """Raise `BackendError` for unsupported model files. All backends accept functions."""
        if model.factory is None and model.suffix not in self.suffixes:
            taken = ", ".join([*self.suffixes, "module:function"])
            raise BackendError(f"{self.name} does not support {model.path}; it supports {taken}")


def imported(module: str, install: str, title: str = "") -> Any:
    """Import a framework's module. Raises `BackendUnavailableError` with `title` as its name."""
    try:
        return import_module(module)
    except (ImportError, OSError) as error:
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        why = "is not installed" if is_missing else f"cannot be imported ({' '.join(str(error).split())[:300]})"
        raise BackendUnavailableError(f"{title or module} {why}: {install}") from error
