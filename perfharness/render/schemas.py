"""JSON Schemas of the files that perfharness writes."""

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
"""The type of each file, by its name without `.json`."""


def json_schema(kind: str) -> dict[str, Any]:
    """The schema of a kind of file. Raises `UsageError` with the list of kinds if there is no such kind."""
    if kind not in KINDS:
        raise UsageError(f"There is no schema of {kind!r}. Kinds: {', '.join(KINDS)}.")
    model = KINDS[kind]
    generator = _WrittenResult if model in (Benchmark, BenchmarkMean) else GenerateJsonSchema
    schema = model.model_json_schema(mode="serialization", schema_generator=generator)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


class _WrittenResult(GenerateJsonSchema):
    """Dataclasses are written with every field and no other; a field of a model that has a default may be missing."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Return True for every field of a dataclass."""
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)

    def field_title_should_be_set(self, _: Any) -> bool:
        """Leave the title out, which would repeat the name."""
        return False

    def dataclass_schema(self, schema: Any) -> Any:
        """Forbid further fields."""
        return {**super().dataclass_schema(schema), "additionalProperties": False}

    def default_schema(self, schema: Any) -> Any:
        """Leave the default out: a file does not hold it."""
        return self.generate_inner(schema["schema"])
