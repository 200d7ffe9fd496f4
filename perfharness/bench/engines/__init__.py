"""Engines that make a map of an image (depth, say), side by side: maps, speed, and what the GPU was doing."""
