"""What runs beside the processes of a launch: telemetry, clocks, cool-down, watchers."""
