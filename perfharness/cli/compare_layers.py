"""`perfharness compare-layers`: where the outputs of two ONNX models begin to differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfharness.cli.bench_options import shapes_of
from perfharness.cli.help import GroupedCommand
from perfharness.cli.options import CONTEXT, EXIT_CHECK_FAILED, EXIT_OK
from perfharness.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare-layers", cls=GroupedCommand, context_settings=CONTEXT)(compare_layers_verb)


def compare_layers_verb(
    first: Annotated[Path, typer.Argument(metavar="FIRST.onnx", help="What differences are relative to.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND.onnx", help="The other model.")],
    input_file: Annotated[
        Path | None, typer.Option("--input", help=".npz by input name, or .npy. [default: seeded random values]")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", metavar="NAME=NxN…", help="Of an input that leaves dimensions open, as image=1x3x224x224."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of random values.")] = 0,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Largest relative error: norm of the difference over that of FIRST.")
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
    from perfharness.bench.accuracy.onnx_graph import graph_inputs, load_graph
    from perfharness.bench.accuracy.samples import read_arrays
    from perfharness.files import write_text
    from perfharness.render.terminal.console import Console
    from perfharness.render.terminal.layers import print_layers

    for path in (first, second, *((input_file,) if input_file else ())):
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
    if not tolerance >= 0:
        raise UsageError(f"--tolerance {tolerance:g} must not be less than 0")
    if input_file is None:
        inputs = layer_inputs(first, _numbers(shapes_of(shape or ())), seed)
    else:
        inputs = read_arrays(input_file)
        if list(inputs) == [""]:
            inputs = {next(iter(graph_inputs(load_graph(first)))): inputs[""]}
    found = compare_layers(first, second, inputs, tolerance=tolerance, memory_bytes=memory << 20)
    if json_file is not None:
        write_text(json_file, lambda file: print(found.model_dump_json(indent=2), file=file))
    print_layers(Console(), found, every=every)
    failed = found.first_beyond is not None or not found.compared
    raise typer.Exit(EXIT_CHECK_FAILED if failed else EXIT_OK)


def _numbers(shapes: dict[str, tuple[int | str, ...]]) -> dict[str, tuple[int, ...]]:
    for name, shape in shapes.items():
        if words := [part for part in shape if isinstance(part, str)]:
            raise UsageError(f"--shape {name}: {words[0]!r} is no number")
    return {name: tuple(int(part) for part in shape) for name, shape in shapes.items()}
