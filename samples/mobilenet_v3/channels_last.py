"""The weights as frameworks with channels last want them; the images they take stay (batch, 3, height, width).

So that all frameworks get the same bytes, a model with channels last transposes the image first: its own time, as it
is in a service whose images come with channels first. "same" padding at stride 2 would differ from PyTorch's: (0, 1)
where that has (1, 1) for a kernel of 3 and an even size. Padding is therefore written out there.
"""

from __future__ import annotations

from samples.mobilenet_v3.reference import Array, Weights


def kernel(weights: Weights, name: str) -> Array:
    """(out, in, height, width) as (height, width, in, out)."""
    array: Array = weights[f"{name}.weight"].transpose(2, 3, 1, 0)
    return array


def depthwise_kernel(weights: Weights, name: str) -> Array:
    """(channels, 1, height, width) as (height, width, channels, 1)."""
    array: Array = weights[f"{name}.weight"].transpose(2, 3, 0, 1)
    return array


def matrix(weights: Weights, name: str) -> Array:
    """(out, in) as (in, out)."""
    array: Array = weights[f"{name}.weight"].T
    return array
