"""TensorRT 10, TensorRT 11 and TensorRT-RTX by one adapter: what differs is in `library`, all else is shared."""

from __future__ import annotations

from perfharness.backends.tensorrt.backend import TensorRTBackend, TensorRTRTXBackend

__all__ = ["TensorRTBackend", "TensorRTRTXBackend"]
