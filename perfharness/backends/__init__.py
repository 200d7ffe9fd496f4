"""Inference backends. Nothing is here yet."""
