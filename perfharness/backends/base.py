"""Interface of all inference backends: whether options can run here, and a session of a model.

A backend is one file with a `Backend` and a `Session`, and one line in `perfharness.backends.BACKENDS`. Frameworks are
imported inside methods only: importing `perfharness.backends` loads none of them.
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
"""In place of the possible values of an option."""

Device = Literal["cpu", "cuda"]
DeviceChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class BackendOptions:
    """How to run a model.

    Args:
        mode: one of the backend's `modes`, e.g. `eager`, `compile`, `cudagraph`; `xla`; a provider's name.
        threads: of the host, for backends that compute there; None: the backend's own choice.
        extra: options of this backend only, by name; unknown names are an error.
        cache_dir: for engines; None: no cache.
        calibration: samples on which an ONNX model in fp32 is quantised, where the precision is int8.
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
        modes: how it can run a model, the default first.
        precisions: that it supports on some device.
        suffixes: of the model files that it accepts, e.g. `.onnx`; `SAVED_MODEL` for such a folder.
        install: command that installs it.
        libraries: modules whose versions are reported, the framework's first.
        extra: its own options, each with the possible values (the default first) or `NUMBER`; none: any.
    """

    name: str
    modes: tuple[str, ...]
    precisions: tuple[Precision, ...]
    suffixes: tuple[str, ...]
    install: str
    libraries: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}

    def versions(self) -> dict[str, str]:
        """Versions of the libraries in use, by name. Raises `BackendUnavailableError` where it is not installed."""
        return {name: str(imported(name, self.install).__version__) for name in self.libraries}

    def unsupported(self, options: BackendOptions) -> str | None:
        """Why it cannot run here with valid options (not installed, no GPU), or None; may raise `BackendError`."""
        del options
        return None

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """A session of a model that it takes, with options that it can run.

        Whatever is built (an engine, say) is built here or in `allocate`, never in a round. Raises `BackendError` where
        the model cannot be loaded.
        """
        raise NotImplementedError

    def modes_on(self, device: Device) -> tuple[str, ...]:
        """The modes for a device, the default first; `problem` checks whether one runs here."""
        del device
        return self.modes

    def problem(self, options: BackendOptions) -> str | None:
        """Why it cannot run here with these options (not installed, no GPU, no such mode or precision), or None."""
        if options.mode and options.mode not in self.modes:
            return f"there is no mode {options.mode!r}; there are: {', '.join(self.modes)}"
        if options.precision not in self.precisions:
            return f"it does not compute in {options.precision}; it does in: {', '.join(self.precisions)}"
        for name, value in options.extra.items():
            if name not in self.extra:
                return f"there is no option {name!r}; there are: {', '.join(sorted(self.extra)) or 'none'}"
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
        """A session of a model.

        Raises `BackendUnavailableError` where `problem` gives a reason, `BackendError` where it cannot be loaded.
        """
        if (problem := self.problem(options)) is not None:
            raise BackendUnavailableError(f"{self.name}: {problem}")
        self.check_model(model)
        return self.open(model, options)

    def check_model(self, model: ModelSource) -> None:
        """Raise `BackendError` where it does not take files of this kind. A factory is taken by every backend."""
        if model.factory is None and model.suffix not in self.suffixes:
            taken = ", ".join([*self.suffixes, "module:function"])
            raise BackendError(f"{self.name} does not take {model.path}; it takes {taken}")


def imported(module: str, install: str, title: str = "") -> Any:
    """A framework's module. Raises `BackendUnavailableError`; `title` is its name in that message."""
    try:
        return import_module(module)
    except (ImportError, OSError) as error:
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        why = "is not installed" if is_missing else f"cannot be imported ({' '.join(str(error).split())[:300]})"
        raise BackendUnavailableError(f"{title or module} {why}: {install}") from error
