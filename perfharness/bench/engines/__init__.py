"""Compare engines that compute a map (such as depth) from an image: maps, speed, and GPU telemetry."""
