"""What real bindings of TensorRT take, as a table: classes, methods with their arguments, properties, enumerations.

Tables of the versions that are stood in for lie in `tables/`; scripts/check_tensorrt makes them from the real wheels,
and compares. They hold names and types only.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent / "tables"
TENSORRT = ("10.0.1", "11.4.0.106")
RTX = "1.7.1.116"
LEAN = "lean-11.4.0.106"
CLASSES = (
    *("Builder", "EngineInspector", "IBuilderConfig", "ICudaEngine", "IExecutionContext", "IHostMemory", "ILayer"),
    *("ILogger", "INetworkDefinition", "IOptimizationProfile", "IProfiler", "IRuntimeCache", "IRuntimeConfig"),
    *("ITensor", "ITimingCache", "OnnxParser", "ParserError", "Runtime"),
)
ENUMS = (
    *("BuilderFlag", "ComputeCapability", "CudaGraphStrategy", "DataType", "EngineInvalidityDiagnostics"),
    *("EngineValidity", "ExecutionContextAllocationStrategy", "LayerInformationFormat", "LayerType", "MemoryPoolType"),
    *("NetworkDefinitionCreationFlag", "ProfilingVerbosity", "TensorIOMode", "TensorLocation", "ILogger.Severity"),
)
Argument = tuple[str, str, bool]
"""Name, type, whether it must be given."""


def table_of(module: Any) -> dict[str, Any]:
    """The table of an imported TensorRT."""
    classes = {name: _class(getattr(module, name)) for name in CLASSES if hasattr(module, name)}
    enums = {}
    for name in ENUMS:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None:
            enums[name] = {member: int(value) for member, value in found.__members__.items()}
    return {"version": module.__version__, "classes": classes, "enums": enums}


def read_table(version: str) -> dict[str, Any]:
    """A table that was kept."""
    table: dict[str, Any] = json.loads((TABLES / f"{version}.json").read_text())
    return table


def as_text(table: dict[str, Any]) -> str:
    """As it is kept: one line a method or property."""
    lines = ["{", f' "version": {json.dumps(table["version"])},', ' "classes": {']
    for index, (name, described) in enumerate(sorted(table["classes"].items())):
        lines.append(f"  {json.dumps(name)}: {{")
        for part in ("methods", "properties"):
            entries = [
                f"    {json.dumps(each)}: {json.dumps(value)}" for each, value in sorted(described[part].items())
            ]
            lines.append(f"   {json.dumps(part)}: {{")
            lines.extend(f"{entry}," for entry in entries[:-1])
            lines.extend(entries[-1:])
            lines.append("   }" + ("," if part == "methods" else ""))
        lines.append("  }" + ("," if index < len(table["classes"]) - 1 else ""))
    lines.append(" },")
    enums = [f"  {json.dumps(name)}: {json.dumps(members)}" for name, members in sorted(table["enums"].items())]
    return "\n".join([*lines, ' "enums": {', ",\n".join(enums), " }", "}"]) + "\n"


def _class(found: type) -> dict[str, Any]:
    methods: dict[str, list[list[Argument]]] = {}
    properties: dict[str, bool] = {}
    for name in dir(found):
        if name.startswith("add_") and found.__name__ == "INetworkDefinition":
            continue  # layers are added by the parser
        value = getattr(found, name)
        if name == "__init__" or (not name.startswith("_") and callable(value) and not isinstance(value, type)):
            if overloads := _overloads(name, value.__doc__ or ""):
                methods[name] = overloads
        elif isinstance(value, property):
            properties[name] = value.fset is not None
    return {"methods": methods, "properties": properties}


def _overloads(name: str, doc: str) -> list[list[Argument]]:
    """Arguments of each overload, from the first lines that pybind11 writes into a docstring."""
    pattern = re.compile(rf"^(?:\d+\. )?{re.escape(name)}\((self: .*)\) -> ", re.MULTILINE)
    return [[_argument(part) for part in _split(found)[1:]] for found in pattern.findall(doc)]


def _argument(text: str) -> Argument:
    name, _, rest = text.partition(": ")
    kind, equals, _ = rest.partition(" = ")
    return name, re.sub(r"\b\w+\.(?=\w)", "", kind).split("::")[-1], not equals


def _split(text: str) -> list[str]:
    """At commas that are in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([<") - (letter in ")]>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
