"""From a file to a model's input: the user's own function, or resize and normalise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.bench.accuracy.figure import SampleError
from perfharness.bench.accuracy.functions import user_function
from perfharness.bench.accuracy.samples import ARRAY_SUFFIXES, open_image, read_arrays
from perfharness.errors import UsageError
from perfharness.model.base import Settings
from perfharness.model.bench import TensorSpec

CHANNELS = (1, 3)

Shape = tuple[int, ...]


class PreprocessSettings(Settings):
    """How a file becomes an input.

    Args:
        function: `module:function` or `file.py:function`, called with the file's path; it returns the array of one
            item, without the batch dimension, or arrays by input name. None: images are resized to the input's height
            and width (bilinear) and made (pixel / 255 - mean) / std; an input of integers gets the pixels. Arrays
            (`.npy`, `.npz`) are taken as they are.
        input_name: of the input that the array is for; None: the model's only one.
    """

    function: str | None = None
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # of ImageNet, as is `std`
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    input_name: str | None = None


class Preprocessor:
    """Made once; raises `UsageError` where the settings do not fit the model.

    Args:
        specs: the model's inputs.
        shapes: by name, as allocated, the batch dimension included.
    """

    def __init__(self, settings: PreprocessSettings, specs: Sequence[TensorSpec], shapes: dict[str, Shape]) -> None:
        self._settings, self._specs, self._shapes = settings, {one.name: one for one in specs}, shapes
        self._function: Any = None if settings.function is None else user_function(settings.function)
        if settings.input_name is not None and settings.input_name not in self._specs:
            raise UsageError(f"the model has no input {settings.input_name!r}; it has: {', '.join(self._specs)}")
        if min(settings.std) <= 0:
            raise UsageError("the standard deviations that pixels are divided by must be more than 0")

    def __call__(self, path: Path) -> dict[str, npt.NDArray[Any]]:
        """Inputs of one item, without the batch dimension. Raises `SampleError`."""
        if self._function is not None:
            made = self._made(path)
        elif path.suffix.lower() in ARRAY_SUFFIXES:
            made = read_arrays(path)
        else:
            made = {"": self._image(path)}
        if len(made) == 1 and (only := next(iter(made))) not in self._specs:
            made = {self._only_name(path): made[only]}
        return {name: self._fitted(path, name, made) for name in self._specs}

    def _made(self, path: Path) -> dict[str, npt.NDArray[Any]]:
        try:
            made = self._function(path)
        except Exception as error:
            text = f"{self._settings.function} failed for {path}: {type(error).__name__}: {error}"
            raise SampleError(text) from error
        arrays = made if isinstance(made, dict) else {"": made}
        return {str(name): np.asarray(array) for name, array in arrays.items()}

    def _only_name(self, path: Path) -> str:
        if self._settings.input_name is not None:
            return self._settings.input_name
        if len(self._specs) > 1:
            raise SampleError(f"{path} is one array, and the model has the inputs {', '.join(self._specs)}: name one")
        return next(iter(self._specs))

    def _fitted(self, path: Path, name: str, made: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        if name not in made:
            raise SampleError(f"{path} has no array for the input {name!r}; it has: {', '.join(made)}")
        array, wanted = made[name], self._shapes[name][1:]
        if array.shape == (1, *wanted):
            array = array[0]
        if array.shape != wanted:
            raise SampleError(f"{path} is {array.shape} for the input {name!r}, and {wanted} is wanted")
        return np.ascontiguousarray(array, dtype=np.dtype(self._specs[name].dtype))

    def _image(self, path: Path) -> npt.NDArray[Any]:
        name = self._only_name(path)
        shape = self._shapes[name]
        is_first = len(shape) == 4 and shape[1] in CHANNELS
        if not is_first and (len(shape) != 4 or shape[3] not in CHANNELS):
            raise UsageError(
                f"input {name!r} is {shape}, which is no batch of images; give the data as .npy, or name a function"
            )
        channels, height, width = shape[1:] if is_first else (shape[3], *shape[1:3])
        image = open_image(path).convert("RGB" if channels == 3 else "L").resize((width, height), resample=2)
        pixels: npt.NDArray[Any] = np.asarray(image, dtype=np.float32).reshape(height, width, channels)
        if np.dtype(self._specs[name].dtype).kind == "f":
            mean, std = (np.asarray(one[:channels], np.float32) for one in (self._settings.mean, self._settings.std))
            pixels = (pixels / 255 - mean) / std
        return pixels.transpose(2, 0, 1) if is_first else pixels
