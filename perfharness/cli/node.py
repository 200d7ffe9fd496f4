"""Run one node's part of `perfharness launch --ray`, which the driver sends to stdin as JSON (see `cluster.ray`)."""

from __future__ import annotations

import json
import sys
from typing import Any

from perfharness.cli.launch import watching
from perfharness.cli.main import reporting_errors
from perfharness.cli.support.options import EXIT_FAILED, EXIT_OK
from perfharness.cli.support.output import Output
from perfharness.render.views.plan import plan_view
from perfharness.runs.launch import plan_launches, run_plan
from perfharness_launcher.options import LaunchOptions


def launch_node(order: dict[str, Any]) -> int:
    """Run the launch or print its plan, and return the exit code. The driver prints the results."""
    (plan,) = plan_launches([LaunchOptions.model_validate(order["options"])])
    output = Output(verbose=order["verbose"])
    if order.get("dry_run"):
        output.show(plan_view(plan))
        return EXIT_OK
    with watching(plan, output) as observer:
        result = run_plan(plan, order["command"], observer)
    return EXIT_OK if result.all_processes_well else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(reporting_errors(lambda: launch_node(json.load(sys.stdin))))
