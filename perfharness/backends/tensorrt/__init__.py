"""TensorRT 10 and 11, the lean runtime and TensorRT-RTX in one adapter; differences are in `library`."""
