"""TensorRT 10, 11, its lean runtime and TensorRT-RTX behind one adapter; the differences are in `library`."""
