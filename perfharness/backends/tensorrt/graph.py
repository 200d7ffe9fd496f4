"""One execution captured from a stream as a CUDA graph, through cuda-python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfharness.backends.cuda_memory import CudaStream, checked, runtime


class CudaGraph:
    """What `work` put into the stream, to be put there again by one call.

    TensorRT wants to have executed once after shapes or profile changed before it is captured (Best Practices, CUDA
    Graphs): the caller sees to that.
    """

    def __init__(self, stream: CudaStream, work: Callable[[], None]) -> None:
        self._cuda, self._stream = runtime(), stream
        self._instance: Any = None
        cuda, pointer = self._cuda, stream.pointer
        mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        checked(cuda.cudaStreamBeginCapture(pointer, mode), "the capture of a CUDA graph")
        try:
            work()
        except BaseException:
            _, unfinished = cuda.cudaStreamEndCapture(pointer)  # or the stream could not be used again
            if unfinished is not None:
                cuda.cudaGraphDestroy(unfinished)
            raise
        graph = checked(cuda.cudaStreamEndCapture(pointer), "the capture of a CUDA graph")
        try:
            self._instance = checked(cuda.cudaGraphInstantiate(graph, 0), "a CUDA graph")
        finally:
            cuda.cudaGraphDestroy(graph)

    def launch(self) -> None:
        """Put it into the stream."""
        checked(self._cuda.cudaGraphLaunch(self._instance, self._stream.pointer), "a CUDA graph")

    def close(self) -> None:
        """Free it."""
        if self._instance is not None:
            self._cuda.cudaGraphExecDestroy(self._instance)
            self._instance = None
