"""Shared by several verbs: options, settings, output, progress."""
