"""Code for other interpreters: the start-up hook, and a query that needs no perfharness."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FOLLOW = FOLDER / "follow"
"""First folder on PYTHONPATH in a launch: its `sitecustomize` runs in every Python process."""

ASK_INTERPRETER = FOLDER / "perfharness_ask_interpreter.py"
