"""The user's data: inputs and their ground truth in folders, matched by the names of the files; labels.

A file that cannot be read raises `SampleError` when it is read, so only that sample is lost.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.bench.accuracy.figure import SampleError
from perfharness.errors import ToolNotFoundError, UsageError
from perfharness.model.distribution import install_command

ARRAY_SUFFIXES = (".npy", ".npz")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
INSTALL_PILLOW = install_command("images")
NAMED = 3
"""Files named in a message, at most."""


@dataclass(frozen=True)
class Sample:
    """One input; `name` is the path below its folder without the suffix."""

    name: str
    path: Path
    truth: Path | None = None
    label: int | None = None


@dataclass(frozen=True)
class SampleSet:
    """All inputs in order of their names, and remarks on the others.

    Args:
        class_names: by label.
        remarks: files that were not matched, one sentence per kind.
    """

    samples: tuple[Sample, ...]
    class_names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=())


def find_samples(
    inputs: Path, truth: Path | None = None, labels: Path | None = None, limit: int | None = None
) -> SampleSet:
    """The samples in a folder, or one file.

    Args:
        truth: a folder of maps with the same names, or one file for one input.
        labels: `folders` are meant by naming the input folder itself: the first folder below it is the class, classes
            in order of their names; else a CSV of `name,label`, labels being numbers or names.
        limit: at most so many, the first by name.

    Raises `UsageError` where nothing can be compared at all.
    """
    found, remarks = _by_name(inputs)
    class_names: tuple[str, ...] = ()
    samples = [Sample(name, path) for name, path in found.items()]
    if truth is not None:
        samples, more = _with_truth(samples, truth, inputs)
        remarks += more
    if labels is not None:
        samples, class_names, more = _with_labels(samples, labels, inputs)
        remarks += more
    if limit is not None and limit < len(samples):
        remarks.append(f"the first {limit} of {len(samples)} samples were taken, by name")
        samples = samples[:limit]
    return SampleSet(tuple(samples), class_names, tuple(remarks))


def _by_name(location: Path) -> tuple[dict[str, Path], list[str]]:
    """Readable files by name; files that share a name are not used."""
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
    remarks = []
    if twice := [name for name, paths in files.items() if len(paths) > 1]:
        remarks.append(f"{_some(twice)} in {location}: several files of one name, so none of them is used")
    if others:
        remarks.append(f"{_some(others)} in {location}: neither array nor image")
    one = {name: paths[0] for name, paths in files.items() if len(paths) == 1}
    if not one:
        kinds = ", ".join((*ARRAY_SUFFIXES, *IMAGE_SUFFIXES))
        raise UsageError(f"{location} holds no samples; it must hold files of these kinds: {kinds}")
    return one, remarks


def _with_truth(samples: list[Sample], truth: Path, inputs: Path) -> tuple[list[Sample], list[str]]:
    if inputs.is_file():
        if not truth.is_file():
            raise UsageError(f"{inputs} is one file, so its ground truth must be one file too, which {truth} is not")
        return [Sample(samples[0].name, samples[0].path, truth)], []
    maps, remarks = _by_name(truth)
    both = [Sample(one.name, one.path, maps[one.name]) for one in samples if one.name in maps]
    if not both:
        raise UsageError(
            f"no file in {inputs} has its ground truth in {truth}: they are matched by name, and {samples[0].name} is "
            f"not there; there is {next(iter(maps))}"
        )
    if without := [one.name for one in samples if one.name not in maps]:
        remarks.append(f"{_some(without)} in {inputs}: no ground truth of that name in {truth}")
    if unused := sorted(set(maps) - {one.name for one in samples}):
        remarks.append(f"{_some(unused)} in {truth}: no input of that name in {inputs}")
    return both, remarks


def _with_labels(samples: list[Sample], labels: Path, inputs: Path) -> tuple[list[Sample], tuple[str, ...], list[str]]:
    given = _folder_labels(samples) if labels == inputs else _csv_labels(labels, samples)
    if not given:
        raise UsageError(f"no sample of {inputs} has a label in {labels}")
    names: tuple[str, ...] = ()
    if not all(text.isdigit() for text in given.values()):
        names = tuple(sorted(set(given.values())))
    numbers = {name: names.index(text) if names else int(text) for name, text in given.items()}
    labelled = [Sample(one.name, one.path, one.truth, numbers[one.name]) for one in samples if one.name in numbers]
    without = [one.name for one in samples if one.name not in numbers]
    remarks = [f"{_some(without)} in {inputs}: no label in {labels}"] if without else []
    return labelled, names, remarks


def _folder_labels(samples: Iterable[Sample]) -> dict[str, str]:
    return {one.name: one.name.split("/", 1)[0] for one in samples if "/" in one.name}


def _csv_labels(path: Path, samples: Iterable[Sample]) -> dict[str, str]:
    """Label by sample; a row names it with or without folder and suffix. A first row that matches none is a header."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"labels cannot be read from {path}: {error}") from error
    if short := next((number for number, row in enumerate(rows, 1) if len(row) < 2), None):
        raise UsageError(f"{path}: row {short} has no label; each row must be name,label")
    labels: dict[str, str] = {}
    for name, label, *_ in rows:
        if labels.get(name, label) != label:
            raise UsageError(f"{path} has two labels for {name}: {labels[name]} and {label}")
        labels[name] = label
    found = {}
    for one in samples:
        for name in (
            one.name + one.path.suffix,
            one.path.name,
            one.name,
            Path(one.name).name,
        ):
            if name in labels:
                found[one.name] = labels[name]
                break
    return found


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Arrays of a `.npz` by name; of a `.npy` one, without a name. Raises `SampleError`."""
    try:
        with path.open("rb") as file:  # numpy.load leaves a damaged archive open
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            with loaded as archive:
                return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        problem = "it holds no plain NumPy arrays" if "pickle" in str(error) else str(error)
        raise SampleError(f"{path} cannot be read: {problem}") from error
    except Exception as error:  # a damaged archive raises errors of zipfile and zlib
        raise SampleError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """An image as (height, width, 3), uint8. Raises `SampleError`."""
    image = open_image(path)
    return np.asarray(image.convert("RGB"), dtype=np.uint8)


def open_image(path: Path) -> Any:
    """Pillow's image, decoded. Raises `SampleError`, and `ToolNotFoundError` where Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise ToolNotFoundError(f"images are read by Pillow, which is not installed; {INSTALL_PILLOW}") from None
    try:
        image = Image.open(path)
        image.load()
    except Exception as error:  # Pillow passes on exceptions of its decoders
        raise SampleError(f"{path} cannot be read as an image: {error}") from error
    return image


def read_map(path: Path, scale: float = 1.0) -> npt.NDArray[np.float64]:
    """A map with one value per pixel, (height, width).

    Args:
        path: `.npy`, `.npz` with one array (or one called `depth`), or an image of one channel, 8 or 16 bit.
        scale: what a pixel's value is divided by, for images: 256 for KITTI's, 1000 for millimetres.

    Raises `SampleError`.
    """
    if path.suffix.lower() in ARRAY_SUFFIXES:
        arrays = read_arrays(path)
        if len(arrays) > 1 and "depth" not in arrays:
            raise SampleError(f"{path} has several arrays ({', '.join(arrays)}), none of them called depth")
        if not arrays:
            raise SampleError(f"{path} has no array in it")
        values = arrays.get("depth", next(iter(arrays.values())))
        divided = 1.0
    else:
        values, divided = np.asarray(open_image(path)), scale
        if values.ndim == 3:
            raise SampleError(f"{path} is a colour image; ground truth has one channel, for depth 16-bit PNG")
    flat = as_map(values)
    if flat.dtype.kind not in "fiub":
        raise SampleError(f"{path} has values of {flat.dtype}, which are no real numbers")
    return np.asarray(flat, dtype=np.float64) / divided


def as_map(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(height, width) of an array whose other dimensions are 1. Raises `SampleError`."""
    shape = [size for size in values.shape if size != 1]
    if len(shape) != 2:
        shape = list(values.shape[-2:]) if values.ndim >= 2 and values.size == np.prod(values.shape[-2:]) else shape
    if len(shape) != 2:
        raise SampleError(
            f"an array of {values.shape} is no map: it must have a height and a width, and one value a pixel"
        )
    return values.reshape(shape)


def resized_map(values: npt.NDArray[Any], shape: tuple[int, int]) -> npt.NDArray[np.float64]:
    """A map at another size, bilinear, pixel centres aligned."""
    if values.shape == shape:
        return np.asarray(values, dtype=np.float64)
    rows, row_weight = _places(values.shape[0], shape[0])
    columns, weight = _places(values.shape[1], shape[1])
    source = np.asarray(values, dtype=np.float64)
    next_row = np.minimum(rows + 1, values.shape[0] - 1)
    next_column = np.minimum(columns + 1, values.shape[1] - 1)
    row_weight = row_weight[:, np.newaxis]
    with np.errstate(invalid="ignore"):
        upper = source[rows][:, columns] * (1 - weight) + source[rows][:, next_column] * weight
        lower = source[next_row][:, columns] * (1 - weight) + source[next_row][:, next_column] * weight
        return np.asarray(upper * (1 - row_weight) + lower * row_weight, dtype=np.float64)


def _places(size: int, wanted: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """For each pixel: the preceding source pixel, and the fraction of the way to the next."""
    at = np.clip((np.arange(wanted) + 0.5) * size / wanted - 0.5, 0, size - 1)
    first = np.floor(at).astype(np.int64)
    return first, at - first


def _some(names: Sequence[str] | Mapping[str, Any]) -> str:
    shown = ", ".join(list(names)[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)} file{'s' if len(names) != 1 else ''} ({shown}{more})"
