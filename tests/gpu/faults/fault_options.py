"""The options of all programs of this corpus."""

from __future__ import annotations

import argparse


def parse_options(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--mended", action="store_true", help="without the fault")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    return parser.parse_args()
