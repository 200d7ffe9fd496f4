"""Compare engines that make a map of an image (depth, say): maps, speed, and GPU telemetry."""
