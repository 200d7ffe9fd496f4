"""What runs alongside the processes of a launch: telemetry, clocks, cool-down, watchers."""
