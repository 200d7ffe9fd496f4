"""TensorRT 10, 11, its lean runtime and TensorRT-RTX behind one adapter; the differences are in `library`."""

from __future__ import annotations

from perfharness.backends.tensorrt.backend import TensorRTBackend, TensorRTLeanBackend, TensorRTRTXBackend

__all__ = ["TensorRTBackend", "TensorRTLeanBackend", "TensorRTRTXBackend"]
