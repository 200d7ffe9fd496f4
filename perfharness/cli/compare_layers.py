"""`perfharness compare-layers`: where the outputs of two ONNX models begin to differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfharness.backends.models import shapes_of
from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import CONTEXT, EXIT_CHECK_FAILED, EXIT_OK


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare-layers", cls=GroupedCommand, context_settings=CONTEXT)(compare_layers_verb)


def compare_layers_verb(
    first: Annotated[
        Path,
        typer.Argument(metavar="FIRST.onnx", help="What differences are relative to.", exists=True, dir_okay=False),
    ],
    second: Annotated[
        Path, typer.Argument(metavar="SECOND.onnx", help="The other model.", exists=True, dir_okay=False)
    ],
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input", help=".npz by input name, or .npy. [default: seeded random values]", exists=True, dir_okay=False
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", metavar="NAME=NxN…", help="Of an input that leaves dimensions open, as image=1x3x224x224."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of random values.")] = 0,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", min=0, help="Largest relative error: norm of the difference over that of FIRST."),
    ] = 1e-2,
    memory: Annotated[int, typer.Option("--memory-mib", min=1, help="For the exposed tensors at a time.")] = 512,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all rows as JSON.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Print all rows.")] = False,
) -> None:
    """Run two ONNX models on the same input and compare every tensor inside: the first that differs, and by how much.

    Tensors are matched by name (one graph in two precisions), else by position, operator and shape. Runs on the CPU.

    Exit codes: 0 all within the tolerance; 3 a tensor is beyond it, or none could be compared.
    """
    from perfharness.bench.accuracy.layers import compare_layers, layer_inputs
    from perfharness.bench.accuracy.samples import read_arrays
    from perfharness.files import write_model
    from perfharness.render.terminal.console import Console
    from perfharness.render.terminal.layers import print_layers

    inputs = read_arrays(input_file) if input_file else layer_inputs(first, shapes_of(shape or ()), seed)
    found = compare_layers(first, second, inputs, tolerance=tolerance, memory_bytes=memory << 20)
    if json_file is not None:
        write_model(json_file, found)
    print_layers(Console(), found, every=every)
    failed = found.first_beyond is not None or not found.compared
    raise typer.Exit(EXIT_CHECK_FAILED if failed else EXIT_OK)
