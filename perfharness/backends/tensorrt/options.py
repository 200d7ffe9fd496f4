"""How an engine is to be built, from the texts of `BackendOptions.extra`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from perfharness.backends.base import BackendOptions
from perfharness.errors import BackendError

Shape = tuple[int, ...]
Typing = Literal["auto", "strong", "weak"]

EXTRA = ("profile", "typing", "workspace_bytes", "optimization_level", "compute_capabilities")
"""Names of what only this backend knows; docs/guides/tensorrt.md tells what they mean."""


@dataclass(frozen=True)
class ShapeRange:
    """Least, usual and greatest shape of an input."""

    min: Shape
    opt: Shape
    max: Shape

    def holds(self, shape: Shape) -> bool:
        """Whether a shape lies between least and greatest."""
        return len(shape) == len(self.min) and all(
            low <= size <= high for low, size, high in zip(self.min, shape, self.max, strict=True)
        )


Profile = Mapping[str, ShapeRange]
"""Of all inputs with open dimensions, by name."""


@dataclass(frozen=True)
class BuildOptions:
    """What an engine depends on, beside the model and the machine.

    Args:
        profiles: optimisation profiles; none: one with exactly the shapes that are allocated.
        typing: `auto` is strong where the model's own types are those of the precision, or where there is nothing else.
    """

    precision: str
    profiles: tuple[Profile, ...] = ()
    typing: Typing = "auto"
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    compute_capabilities: tuple[str, ...] = ()


def build_options(options: BackendOptions) -> BuildOptions:
    """The options, read. Raises `BackendError` with what is wrong."""
    extra = options.extra
    typing = extra.get("typing", "auto")
    if typing not in ("auto", "strong", "weak"):
        raise BackendError(f"typing is auto, strong or weak, not {typing!r}")
    level = _number(extra, "optimization_level")
    if level is not None and level > 5:
        raise BackendError(f"optimization_level is 0 to 5, not {level}")
    limits = [limit for limit in (_number(extra, "workspace_bytes"), options.memory_limit_bytes) if limit is not None]
    capabilities = tuple(name.strip() for name in extra.get("compute_capabilities", "").split(",") if name.strip())
    return BuildOptions(
        precision=options.precision,
        profiles=tuple(_profile(text) for text in extra.get("profile", "").split("|") if text.strip()),
        typing="strong" if typing == "strong" else "weak" if typing == "weak" else "auto",
        workspace_bytes=min(limits, default=None),
        optimization_level=level,
        compute_capabilities=capabilities,
    )


def exact_profile(shapes: Mapping[str, Shape]) -> Profile:
    """A profile of one shape each."""
    return {name: ShapeRange(shape, shape, shape) for name, shape in shapes.items()}


def _profile(text: str) -> Profile:
    """`x:1x3x8x8,4x3x8x8,8x3x8x8; y:...`: least, usual, greatest shape; one shape stands for all three."""
    profile = {}
    for part in text.split(";"):
        name, colon, shapes = part.strip().rpartition(":")
        sizes = [_shape(shape, part) for shape in shapes.split(",")]
        if not colon or len(sizes) not in (1, 3) or len({len(shape) for shape in sizes}) != 1:
            raise BackendError(f"the profile {part.strip()!r} is not NAME:MIN,OPT,MAX with shapes such as 1x3x224x224")
        least, usual, greatest = sizes if len(sizes) == 3 else sizes * 3
        if not (ShapeRange(least, usual, greatest).holds(usual)):
            raise BackendError(f"the profile {part.strip()!r} is not in order; give least, usual, greatest shape")
        profile[name] = ShapeRange(least, usual, greatest)
    return profile


def _shape(text: str, part: str) -> Shape:
    try:
        return tuple(int(size) for size in text.strip().split("x"))
    except ValueError:
        raise BackendError(
            f"{text.strip()!r} in the profile {part.strip()!r} is no shape such as 1x3x224x224"
        ) from None


def _number(extra: Mapping[str, str], name: str) -> int | None:
    if name not in extra:
        return None
    if not extra[name].isdigit():
        raise BackendError(f"{name} is a whole number, not {extra[name]!r}")
    return int(extra[name])
