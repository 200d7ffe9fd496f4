"""JSON Schemas of result files."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from perfharness.analysis.slowest import Slowest
from perfharness.errors import UsageError
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.model.journal import RecorderJournal
from perfharness.model.load import LoadResult
from perfharness.model.manifest import RunManifest
from perfharness.model.mlperf import MlperfResult
from perfharness.runs.comparison.result import Comparison
from perfharness.runs.files.benchmark_json import Benchmark, BenchmarkMean
from perfharness.runs.series.model import Series

KINDS: dict[str, type[BaseModel]] = {
    "benchmark": Benchmark,
    "benchmark_mean": BenchmarkMean,
    "manifest": RunManifest,
    "recorder": RecorderJournal,
    "bench": BenchSuiteResult,
    "series": Series,
    "comparison": Comparison,
    "load": LoadResult,
    "slowest": Slowest,
    "mlperf": MlperfResult,
}
"""Model of each file, by its name without `.json`."""


def json_schema(kind: str) -> dict[str, Any]:
    """JSON Schema of a kind of file. Raises `UsageError` if the kind is unknown."""
    if kind not in KINDS:
        raise UsageError(f"Unknown kind {kind!r}. Kinds: {', '.join(KINDS)}.")
    model = KINDS[kind]
    generator = _WrittenResult if model in (Benchmark, BenchmarkMean) else GenerateJsonSchema
    schema = model.model_json_schema(mode="serialization", schema_generator=generator)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


class _WrittenResult(GenerateJsonSchema):
    """Requires all fields of dataclasses, which are always written; fields of models with a default may be missing."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Return True for every field of a dataclass."""
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)

    def field_title_should_be_set(self, _: Any) -> bool:
        """Omit titles, which repeat the names."""
        return False

    def dataclass_schema(self, schema: Any) -> Any:
        """Forbid additional fields."""
        return {**super().dataclass_schema(schema), "additionalProperties": False}

    def default_schema(self, schema: Any) -> Any:
        """Omit defaults, which files do not contain."""
        return self.generate_inner(schema["schema"])
