"""JAX: a function, compiled ahead of time by XLA for the shapes of a case, on the CPU or a GPU."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.backends.base import Backend, BackendOptions, imported
from perfharness.backends.models import (
    HALF_DTYPES,
    FactoryModel,
    ModelSource,
    check_own_precision,
    described_model,
    named_outputs,
    precision_of_most,
    specs_of,
    with_size,
)
from perfharness.backends.session import Array, FunctionSession, Session, translated, variables
from perfharness.errors import BackendError
from perfharness.model.bench import Precision, TensorSpec
from perfharness.model.distribution import install_command

MATMUL_PRECISION: dict[Precision, str] = {"fp32": "float32", "tf32": "tensorfloat32"}
"""JAX's own default for float32 on a GPU is TF32: so the requested precision is set."""

THREADS_VARIABLE = "NPROC"
"""From it XLA's client for the CPU takes the size of its thread pools when it starts (xla/pjrt/utils.cc)."""

CACHE_HIT, CACHE_MISS = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"
_cache_events: Counter[str] = Counter()
"""Number of JAX's monitoring events in this process, by name, since the listener was registered."""


class JaxBackend(Backend):
    """Functions `f(*inputs)`, or `(f, parameters)` with `f(parameters, *inputs)`, in a `FactoryModel`.

    With parameters, weights are arguments of what is compiled and are cast to fp16 or bf16; weights in a function's
    closure are constants and stay unchanged.
    """

    name = "jax"
    modes = ("jit",)
    precisions = ("fp32", "tf32", "fp16", "bf16")
    suffixes = ()
    install = f"{install_command('jax')}, for a GPU: pip install 'jax[cuda13]' (or cuda12, as the driver has it)"
    libraries = ("jax", "jaxlib")
    extra: Mapping[str, tuple[str, ...]] = {"xla_flags": ()}

    def unsupported(self, options: BackendOptions) -> str | None:
        """No GPU that JAX can use, or a number of threads other than JAX's."""
        _flags(options)
        return started(imported("jax", self.install), options)

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """Check the function; it is compiled in `allocate`."""
        made = described_model(model, self.name, options.precision, "a function, or (function, parameters)")
        if not callable(made.model) and not _has_parameters(made.model):
            raise BackendError(
                f"the model of {model.factory} is a {type(made.model).__name__}; for jax it must be a function, or "
                "(function, parameters)"
            )
        return JaxSession(model.name, made, options)


class JaxSession(FunctionSession):
    """A function compiled by `jax.jit(...).lower(...).compile()`; its parameters lie on the device.

    Args:
        made: a function of `inputs`, or (function, parameters), the function of `(parameters, *inputs)`.
    """

    no_layer_times = "XLA fuses a model's layers into kernels of its own, and JAX does not report their times"

    def __init__(self, name: str, made: FactoryModel, options: BackendOptions) -> None:
        self._jax = jax = imported("jax", JaxBackend.install)
        self._options, self._names = options, made.outputs
        plain: tuple[Any, Any] = (lambda _, *inputs: made.model(*inputs)), ()
        self._model, parameters = made.model if _has_parameters(made.model) else plain
        self._device = jax.devices(options.device)[0]
        self._half = HALF_DTYPES.get(options.precision)
        self._flags = _flags(options)
        self._compiled: Any = None
        self._memory_before = 0
        with translated("the parameters could not be copied to the device"):
            self._parameters = jax.block_until_ready(jax.tree_util.tree_map(self._placed, parameters))
        with translated(f"{name} could not be traced"):
            few, more = (
                jax.eval_shape(self._traced, self._parameters, *self._abstract(made.inputs, size)) for size in (2, 3)
            )
        super().__init__(made.inputs, specs_of(self._names, few, more))
        check_own_precision(name, "JAX", precision_of_most(self._weights()), options.precision)

    def compiled_programs(self) -> tuple[int, int]:
        """Of JAX's compilation cache, where there is one."""
        _listen(self._jax)
        return _cache_events[CACHE_HIT], _cache_events[CACHE_MISS]

    def device_memory_bytes(self) -> int | None:
        """Peak of JAX's allocator, where it was reached since `allocate`; JAX cannot reset it."""
        peak = _peak_bytes(self._device)
        return peak if peak is not None and peak > self._memory_before else None

    def settings(self) -> dict[str, str]:
        """Settings of JAX and XLA."""
        settings = {"matmul_precision": MATMUL_PRECISION.get(self._options.precision, "default")}
        settings |= {f"--{name}": value for name, value in self._flags.items()}
        preallocation = ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR")
        return settings | variables("XLA_FLAGS", THREADS_VARIABLE, *preallocation)

    def _traced(self, parameters: Any, *inputs: Any) -> tuple[Any, ...]:
        """The model with casts around it, its outputs as a list."""
        cast = [value.astype(self._half) if self._half and _is_float(value) else value for value in inputs]
        self._names, values = named_outputs(self._model(parameters, *cast), self._names)
        return tuple(self._whole(value) for value in values)

    def _whole(self, value: Any) -> Any:
        """Half precision as float32: NumPy has no bfloat16, and hosts expect float32."""
        array = self._jax.numpy.asarray(value)
        return array.astype("float32") if str(array.dtype) in HALF_DTYPES.values() else array

    def _placed(self, leaf: Any) -> Any:
        """A parameter on the device, in the requested precision where it is floating-point."""
        array = leaf if isinstance(leaf, self._jax.Array) else np.asarray(leaf)
        if self._half and _is_float(array):
            array = self._jax.numpy.asarray(array).astype(self._half)
        return self._jax.device_put(array, self._device)

    def _abstract(self, inputs: Iterable[TensorSpec], size: int) -> list[Any]:
        """Inputs whose open dimensions are of that size."""
        dtype = self._jax.dtypes.canonicalize_dtype
        return [self._jax.ShapeDtypeStruct(with_size(spec.shape, size), dtype(spec.dtype)) for spec in inputs]

    def _weights(self) -> Counter[str]:
        """Dtype -> number of elements of all weights, parameters and constants."""
        made = self._jax.make_jaxpr(self._traced)(self._parameters, *self._abstract(self.inputs, 2))
        elements: Counter[str] = Counter()
        for leaf in (*self._jax.tree_util.tree_leaves(self._parameters), *made.consts):
            elements[str(getattr(leaf, "dtype", ""))] += int(np.size(leaf))
        return elements

    def _compile(self, arrays: list[Array]) -> None:
        self._memory_before = _peak_bytes(self._device) or 0
        with self._jax.default_matmul_precision(MATMUL_PRECISION.get(self._options.precision)):
            lowered = self._jax.jit(self._traced).lower(self._parameters, *self._put(arrays))
        flags = {name: _typed(value) for name, value in self._flags.items()}
        with _cached_in(self._jax, self._options.cache_dir):
            self._compiled = lowered.compile(compiler_options=flags or None)

    def _put(self, arrays: Iterable[Array]) -> list[Any]:
        placed: list[Any] = self._jax.device_put(list(arrays), self._device)
        return placed

    def _call(self, inputs: list[Any]) -> list[Any]:
        return list(self._compiled(self._parameters, *inputs))

    def _fetch(self, outputs: list[Any]) -> list[Any]:
        for output in outputs:
            output.copy_to_host_async()
        return outputs

    def _wait(self, values: list[Any]) -> list[Any]:
        if self._fetched:
            return [np.asarray(value) for value in values]
        waited: list[Any] = self._jax.block_until_ready(values)
        return waited

    def _release(self) -> None:
        self._compiled = self._parameters = None


def started(jax: Any, options: BackendOptions) -> str | None:
    """Start JAX's clients with these options' number of threads; why that is not possible, or None.

    JAX starts them once in a process and reads its environment then.
    """
    if not _has_started():
        if options.threads is not None:
            os.environ[THREADS_VARIABLE] = str(options.threads)
        os.environ.setdefault(
            "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
        )  # else JAX reserves three quarters of the GPU's memory
    elif options.device == "cpu" and options.threads is not None:
        running = os.environ.get(THREADS_VARIABLE, "its own number of")
        if running != str(options.threads):
            return (
                f"JAX has started with {running} threads in this process and cannot change it; "
                f"for {options.threads} use a process of its own"
            )
    try:
        jax.devices(options.device)
    except RuntimeError as error:
        return f"JAX finds no {options.device} here: {' '.join(str(error).split())[:200]}"
    return None


@cache
def _listen(jax: Any) -> None:
    """Count events from now on; there is no public way to unregister."""
    jax.monitoring.register_event_listener(lambda event, **_: _cache_events.update([event]))


@contextmanager
def _cached_in(jax: Any, folder: Path | None) -> Iterator[None]:
    """Put JAX's compilation cache there, with XLA's autotuning results; a user's own setting has priority."""
    if folder is None:
        yield
        return
    compilation_cache = import_module("jax.experimental.compilation_cache.compilation_cache")
    wanted = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in wanted}

    def put(values: dict[str, Any]) -> None:
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # else it keeps its first folder

    put(wanted)
    try:
        yield
    finally:
        put(before)


def _has_started() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")  # there is no public name for it
    return bool(bridge is not None and getattr(bridge, "backends_are_initialized", lambda: True)())


def _peak_bytes(device: Any) -> int | None:
    """Peak of the allocator's bytes in use since JAX started; None on the CPU."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    return int(stats["peak_bytes_in_use"]) if stats and "peak_bytes_in_use" in stats else None


def _has_parameters(made: Any) -> bool:
    return isinstance(made, tuple) and len(made) == 2 and callable(made[0])


def _is_float(value: Any) -> bool:
    return str(value.dtype) in ("float16", "bfloat16", "float32", "float64")


def _flags(options: BackendOptions) -> dict[str, str]:
    """Flags of XLA, as `--xla_a=1 --xla_b` or without dashes, as options of one compilation."""
    found = {}
    for word in options.extra.get("xla_flags", "").split():
        name, _, value = word.removeprefix("--").partition("=")
        if not name.startswith("xla_"):
            raise BackendError(f"xla_flags: {word!r} is no flag of XLA; write --xla_NAME=VALUE, separated by spaces")
        found[name] = value or "true"
    return found


def _typed(value: str) -> bool | int | str:
    """A flag's value in the type that XLA expects."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    return int(value) if value.lstrip("-").isdigit() else value
