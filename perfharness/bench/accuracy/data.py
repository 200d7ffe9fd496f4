"""The user's data: inputs with labels or ground truth, matched by file name, and preprocessed to model inputs.

An unreadable file raises `SampleError` when it is read, so only that sample is lost.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.arrays import read_arrays
from perfharness.backends.models import ModelSource, named_function
from perfharness.distribution import install_command
from perfharness.errors import BackendError, PerfHarnessError, ToolNotFoundError, UsageError
from perfharness.model.base import Settings
from perfharness.model.bench import TensorSpec
from perfharness.model.findings import listed

ARRAY_SUFFIXES = (".npy", ".npz")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
INSTALL_PILLOW = install_command("images")
NAMED = 3
"""Most files named in a message."""

CHANNELS = (1, 3)

Arrays = dict[str, npt.NDArray[Any]]
Shape = tuple[int, ...]


class SampleError(PerfHarnessError):
    """One sample cannot be read or compared; others can."""


def user_function(text: str) -> Any:
    """Load the function named by `module:function` or `file.py:function`. Raises `UsageError`."""
    module, colon, name = text.rpartition(":")
    if not colon or not module or not name.isidentifier():
        raise UsageError(f"{text!r} is not a function; name it as module:function or file.py:function")
    try:
        return named_function(ModelSource(name, factory=text))
    except BackendError as error:
        raise UsageError(str(error).replace("; name one that creates the model", "")) from error


@dataclass(frozen=True)
class Sample:
    """One input; `name` is the path below its folder, without suffix."""

    name: str
    path: Path
    truth: Path | None = None
    label: int | None = None
    value: float | None = None


@dataclass(frozen=True)
class SampleSet:
    """All inputs ordered by name, names of the classes by label, and a sentence per kind of unmatched file."""

    samples: tuple[Sample, ...]
    class_names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def find_samples(
    inputs: Path,
    truth: Path | None = None,
    labels: Path | None = None,
    limit: int | None = None,
    class_names: Path | None = None,
    values: Path | None = None,
) -> SampleSet:
    """Find the samples in a folder, or one file; arguments are those of `AccuracySettings`.

    Raises `UsageError` if nothing can be compared.
    """
    found, remarks = _by_name(inputs)
    samples = [Sample(name, path) for name, path in found.items()]
    names = () if class_names is None else _names_in(class_names)

    def join(field: str, partners: Mapping[str, Any], where: Path, what: str) -> None:
        """Keep samples with a partner, stored in that field."""
        without = [one.name for one in samples if one.name not in partners]
        kept = [replace(one, **{field: partners[one.name]}) for one in samples if one.name in partners]
        if not kept:
            raise UsageError(f"no sample of {inputs} ({without[0]}, …) has a {what} with its name in {where}")
        remarks.extend(_remark(without, inputs, f"no {what} in {where}"))
        samples[:] = kept

    if truth is not None:
        if inputs.is_file() != truth.is_file():
            raise UsageError(f"{inputs} and its ground truth {truth} must both be files, or both folders")
        maps, more = ({samples[0].name: truth}, []) if inputs.is_file() else _by_name(truth)
        remarks += [*more, *_remark(sorted(set(maps) - set(found)), truth, f"no input with that name in {inputs}")]
        join("truth", maps, truth, "ground truth")
    if labels is not None:
        if labels == inputs:
            texts = {one.name: one.name.split("/", 1)[0] for one in samples if "/" in one.name}
        else:
            texts = _from_csv(labels, samples)
        if are_names := not all(text.isdigit() for text in texts.values()):
            names = names or tuple(sorted(set(texts.values())))
            if unknown := sorted(set(texts.values()) - set(names)):
                raise UsageError(f"the label {unknown[0]!r} is not one of the classes in {class_names}")
        numbers = {name: names.index(text) if are_names else int(text) for name, text in texts.items()}
        join("label", numbers, labels, "label")
    if values is not None:
        try:
            join("value", {name: float(text) for name, text in _from_csv(values, samples).items()}, values, "value")
        except ValueError as error:
            raise UsageError(f"{values} has a value that is not a number: {error}") from error
    if limit is not None and limit < len(samples):
        remarks.append(f"only the first {limit} of {len(samples)} samples are used, by name")
    return SampleSet(tuple(samples[:limit]), names, tuple(remarks))


def _by_name(location: Path) -> tuple[dict[str, Path], list[str]]:
    """Readable files by name; files with the same name are not used."""
    if location.is_file():
        return {location.stem: location}, []
    if not location.is_dir():
        raise UsageError(f"there is no file or folder {location}")
    files: dict[str, list[Path]] = {}
    others = []
    for path in sorted(location.rglob("*")):
        if not path.is_file() or path.name.startswith("."):
            continue
        if path.suffix.lower() in (*ARRAY_SUFFIXES, *IMAGE_SUFFIXES):
            files.setdefault(str(path.relative_to(location).with_suffix("")), []).append(path)
        elif path.suffix.lower() != ".csv":
            others.append(path.name)
    one = {name: paths[0] for name, paths in files.items() if len(paths) == 1}
    if not one:
        kinds = ", ".join((*ARRAY_SUFFIXES, *IMAGE_SUFFIXES))
        raise UsageError(f"{location} has no samples; samples are files of these kinds: {kinds}")
    several = [name for name in files if name not in one]
    return one, [
        *_remark(several, location, "several files with the same name, none of which is used"),
        *_remark(others, location, "neither array nor image"),
    ]


def _remark(names: Sequence[str], location: Path, why: str) -> list[str]:
    """A sentence about unused files, if any."""
    if not names:
        return []
    return [f"{len(names)} file{'s' * (len(names) > 1)} ({listed(names, NAMED)}) in {location}: {why}"]


def _names_in(file: Path) -> tuple[str, ...]:
    try:
        return tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"class names cannot be read from {file}: {error}") from error


def _from_csv(path: Path, samples: Iterable[Sample]) -> dict[str, str]:
    """Second cell by sample; rows name samples with or without folder and suffix. Other rows are skipped."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    cells: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if len(row) < 2:
            raise UsageError(f"{path}: row {number} has one cell; each row must be name,label or name,number")
        if cells.setdefault(row[0], row[1]) != row[1]:
            raise UsageError(f"{path} has two entries for {row[0]}: {cells[row[0]]} and {row[1]}")
    found = {}
    for one in samples:
        spellings = (one.name + one.path.suffix, one.path.name, one.name, Path(one.name).name)
        found[one.name] = next((cells[name] for name in spellings if name in cells), "")
    return {name: text for name, text in found.items() if text}


def open_image(path: Path) -> Any:
    """Decode an image with Pillow. Raises `SampleError`, or `ToolNotFoundError` if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise ToolNotFoundError(f"reading images needs Pillow, which is not installed; {INSTALL_PILLOW}") from None
    try:
        image = Image.open(path)
        image.load()
    except Exception as error:  # Pillow passes on its decoders' exceptions
        raise SampleError(f"{path} cannot be read as an image: {error}") from error
    return image


def read_map(path: Path, scale: float = 1.0) -> npt.NDArray[np.float64]:
    """Read a map (height, width) with one value per pixel.

    Args:
        path: `.npy`, `.npz` with one array (or one called `depth`), or an 8 or 16-bit image with one channel.
        scale: divisor of pixel values in images: 256 for KITTI, 1000 for millimetres.

    Raises `SampleError`.
    """
    if path.suffix.lower() in ARRAY_SUFFIXES:
        arrays, scale = read_arrays(path, SampleError), 1.0
        if len(arrays) != 1 and "depth" not in arrays:
            several = f"has several arrays ({', '.join(arrays)}), none of them called depth"
            raise SampleError(f"{path} {several if arrays else 'has no array'}")
        values = arrays.get("depth", next(iter(arrays.values())))
    else:
        values = np.asarray(open_image(path))
        if values.ndim == 3:
            raise SampleError(f"{path} is a colour image; ground truth has one channel (depth: 16-bit PNG)")
    if values.dtype.kind not in "fiub":
        raise SampleError(f"{path} has values of {values.dtype}, which are not real numbers")
    return as_map(values).astype(np.float64) / scale


def as_map(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Reshape an array to (height, width); other dimensions must be 1. Raises `SampleError`."""
    shape = [size for size in values.shape if size != 1]
    if values.ndim >= 2 and values.size == np.prod(values.shape[-2:]) and len(shape) != 2:
        shape = list(values.shape[-2:])
    if len(shape) != 2:
        raise SampleError(
            f"an array of {values.shape} is not a map, which has a height, a width and one value per pixel"
        )
    return values.reshape(shape)


def resized_map(values: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Resize a map (height, width), bilinear with aligned pixel centres."""
    found = np.asarray(values, dtype=np.float64)
    if found.shape == shape:
        return found
    from scipy.ndimage import zoom

    factors = [wanted / size for wanted, size in zip(shape, found.shape, strict=True)]
    return np.asarray(zoom(found, factors, order=1, mode="nearest", grid_mode=True), dtype=np.float64)


# ---- preprocessing ----


class PreprocessSettings(Settings):
    """Conversion of a file to an input.

    Args:
        function: `module:function` or `file.py:function`, called with the file's path; returns the array of one item
            without the batch dimension, or arrays by input name. None to resize images to the input's height and width
            (bilinear) and compute (pixel / 255 - mean) / std; integer inputs get the pixels. Arrays (`.npy`, `.npz`)
            are used unchanged.
        input_name: input for the array; None if the model has only one.
    """

    function: str | None = None
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # ImageNet's, like `std`
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    input_name: str | None = None


class Preprocessor:
    """Converts files to inputs of the allocated shapes; raises `UsageError` if the settings do not match the model."""

    def __init__(self, settings: PreprocessSettings, specs: Sequence[TensorSpec], shapes: dict[str, Shape]) -> None:
        self._settings, self._specs, self._shapes = settings, {one.name: one for one in specs}, shapes
        self._function: Any = None if settings.function is None else user_function(settings.function)
        if settings.input_name is not None and settings.input_name not in self._specs:
            raise UsageError(f"the model has no input {settings.input_name!r}; it has: {', '.join(self._specs)}")
        if min(settings.std) <= 0:
            raise UsageError("standard deviations (std) must be more than 0")

    def __call__(self, path: Path) -> Arrays:
        """Inputs of one item, without the batch dimension. Raises `SampleError`."""
        if self._function is not None:
            made = self._made(path)
        elif path.suffix.lower() in ARRAY_SUFFIXES:
            made = read_arrays(path, SampleError)
        else:
            made = {"": self._image(path)}
        if len(made) == 1 and (only := next(iter(made))) not in self._specs:
            made = {self._only_name(path): made[only]}
        return {name: self._fitted(path, name, made) for name in self._specs}

    def _made(self, path: Path) -> Arrays:
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
            raise SampleError(f"{path} is one array, but the model has the inputs {', '.join(self._specs)}: name one")
        return next(iter(self._specs))

    def _fitted(self, path: Path, name: str, made: Arrays) -> npt.NDArray[Any]:
        if name not in made:
            raise SampleError(f"{path} has no array for the input {name!r}; it has: {', '.join(made)}")
        array, wanted = made[name], self._shapes[name][1:]
        if array.shape == (1, *wanted):
            array = array[0]
        if array.shape != wanted:
            raise SampleError(f"{path} is {array.shape}, but the input {name!r} needs {wanted}")
        return np.ascontiguousarray(array, dtype=np.dtype(self._specs[name].dtype))

    def _image(self, path: Path) -> npt.NDArray[Any]:
        name = self._only_name(path)
        shape = self._shapes[name]
        is_first = len(shape) == 4 and shape[1] in CHANNELS
        if not is_first and (len(shape) != 4 or shape[3] not in CHANNELS):
            raise UsageError(
                f"input {name!r} is {shape}, which is not a batch of images; give the data as .npy, or name a function"
            )
        channels, height, width = shape[1:] if is_first else (shape[3], *shape[1:3])
        image = open_image(path).convert("RGB" if channels == 3 else "L").resize((width, height), resample=2)
        pixels: npt.NDArray[Any] = np.asarray(image, dtype=np.float32).reshape(height, width, channels)
        if np.dtype(self._specs[name].dtype).kind == "f":
            mean, std = (np.asarray(one[:channels], np.float32) for one in (self._settings.mean, self._settings.std))
            pixels = (pixels / 255 - mean) / std
        return pixels.transpose(2, 0, 1) if is_first else pixels
