"""What runs in other interpreters: the start-up hook, and questions to an interpreter without perfharness."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FOLLOW = FOLDER / "follow"
"""First on the PYTHONPATH of what a launch starts: its `sitecustomize` is the one way into every process."""

ASK_INTERPRETER = FOLDER / "perfharness_ask_interpreter.py"
