"""MobileNetV3-Large through every backend on the CPU: the same logits as in NumPy, in every precision that it has.

The figures in `TOLERANCE` are promised in docs/guides/backends.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BACKENDS, backend
from perfharness.model.bench import TensorSpec
from samples.mobilenet_v3 import reference, weights
from samples.mobilenet_v3.factory import BUILDERS
from samples.mobilenet_v3.structure import CLASSES, IMAGE_SIZE, INPUT, OUTPUT
from tests.contract.test_backends import loaded_in, of_backend, options_or_skip, run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the frameworks' own

TOLERANCE = {"fp32": 1e-3, "fp16": 0.75, "bf16": 4.0, "int8": 1.0}
"""Greatest difference of a logit from NumPy in fp32, where logits have a standard deviation of 2.

TensorFlow sets those of fp16 and bf16 (0.57 and 3.5, cosine 0.973): it rounds after each operation, where the others
round after several that are fused.
"""

COSINE = {"fp32": 0.999999, "fp16": 0.998, "bf16": 0.96, "int8": 0.995}

CASES = [
    of_backend(name, mode, precision)
    for name in BACKENDS
    if name in BUILDERS
    for mode in backend(name).modes
    for precision in backend(name).precisions
    if precision == "fp32" or mode == backend(name).modes[0]
    if mode != "compile"
]
"""The default mode in every precision, the others in fp32. torch.compile takes a minute and a half of two cores for
this network: tests/gpu do that, and the contract test compiles a small one."""


@cache
def images_and_logits() -> tuple[Any, Any]:
    images = weights.example_images(3)
    return images, reference.forward(weights.seeded(), images)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode", "precision"), CASES)
def test_the_logits_are_those_of_numpy(name: str, mode: str, precision: Any) -> None:
    made, options = options_or_skip(name, mode, precision)
    images, expected = images_and_logits()
    with loaded_in(made, options, "samples.mobilenet_v3.factory:create") as session:
        image = TensorSpec(name=INPUT, shape=(None, 3, IMAGE_SIZE, IMAGE_SIZE), dtype="float32")
        assert session.inputs == (image,)
        assert session.outputs == (TensorSpec(name=OUTPUT, shape=(None, CLASSES), dtype="float32"),)
        logits = run(session, {INPUT: images})[OUTPUT]
    difference = np.abs(logits - expected)
    cosine = (logits * expected).sum() / np.linalg.norm(logits) / np.linalg.norm(expected)
    print(f"{name} {mode} {precision}: max {difference.max():.2e}, mean {difference.mean():.2e}, cosine {cosine:.6f}")
    assert difference.max() < TOLERANCE[precision]
    assert cosine > COSINE[precision]
    if precision == "fp32":
        top = np.argsort(-expected)[:, :5]  # neighbours in that order are 0.01 apart
        np.testing.assert_array_equal(np.argsort(-logits)[:, :5], top)
