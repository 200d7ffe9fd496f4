"""Flame graphs of stages: a picture, a page, or collapsed stacks as text."""
