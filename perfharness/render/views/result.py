"""Results of a run: stages, throughput, ranks, machine and advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfharness.analysis.diagnosis import StageAgreement, agreement
from perfharness.analysis.energy.results import RunEnergy
from perfharness.analysis.metrics.results import RunMetrics
from perfharness.analysis.stages.checks import CAPTURED
from perfharness.model.diagnosis import Code, Diagnosis
from perfharness.model.findings import Severity
from perfharness.model.result import ProcessResult, Tree
from perfharness.render.blocks import Block, Paragraph
from perfharness.render.views.causes import MOST_VALUABLE, advice_view
from perfharness.render.views.diagnosis import diagnoses_of
from perfharness.render.views.energy import energy_view
from perfharness.render.views.evidence import profiling
from perfharness.render.views.machine import machine_view
from perfharness.render.views.ranks import ranks_view
from perfharness.render.views.stages import limited_by, outside_view, stages_view, sums_view, throughput_view
from perfharness.runs.files.json_files import part_of
from perfharness.runs.stage_lines import range_sums, stage_lines


def result_view(
    tree: Tree,
    results: Mapping[str, ProcessResult],
    *,
    diagnoses: Mapping[str, Diagnosis] | None = None,
    has_gpu: bool | None = None,
    whole: bool = False,
) -> list[Block]:
    """Summary of a run.

    Args:
        tree: `benchmark_mean.json`, or `benchmark.json` of one process.
        results: results by process, for diagnoses and for the ranges of a run without batches; may be empty.
        diagnoses: diagnoses by process, or None to take those of `results`.
        has_gpu: whether GPU times of 0 are measurements, or None to read it from `meta`.
        whole: show all advice.
    """
    if has_gpu is None:
        has_gpu = bool(tree.get("meta", {}).get("environment", {}).get("gpus"))
    if diagnoses is None:
        diagnoses = diagnoses_of(results)
    metrics, energy = part_of(tree, "gpu_metrics", RunMetrics), part_of(tree, "energy", RunEnergy)
    lines = stage_lines(tree)
    blocks: list[Block] = []
    if lines:
        limits = limited_by(agreement(diagnoses) or list(_agreements(tree)), diagnoses)
        hidden = {path for one in results.values() for path in one.of_others}
        blocks += stages_view(lines, limits, has_gpu=has_gpu, hidden=hidden)
    else:
        blocks += sums_view(range_sums(list(results.values())), has_gpu=has_gpu)
    return [
        *blocks,
        *profiling(diagnoses),
        *outside_view(tree.get("outside_batches") or []),
        *(throughput_view(tree["throughput"]) if "throughput" in tree else []),
        *_captured(tree),
        *_ranks(tree),
        *energy_view(energy, metrics),
        *machine_view(metrics),
        *advice_view(diagnoses, lines, None if whole else MOST_VALUABLE),
    ]


def _ranks(tree: Tree) -> list[Block]:
    if "ranks" not in tree:
        return []
    from perfharness.analysis.ranks import RunRanks  # slow to import

    ranks = part_of(tree, "ranks", RunRanks)
    return [] if ranks is None else ranks_view(ranks)


def _agreements(tree: Tree) -> Iterator[StageAgreement]:
    """Verdicts on the stages, from the file."""
    for stage in tree.get("diagnosis", {}).get("stages", []):
        verdicts = stage.get("verdicts") or {stage["causes"][0]["code"]: 1}
        counts = {Code(code): count for code, count in verdicts.items()}
        yield StageAgreement(tuple(stage["path"]), counts, stage.get("process", ""), stage["wall_ms"])


def _captured(tree: Tree) -> Iterator[Block]:
    for finding in tree.get("meta", {}).get("findings", ()):
        if finding["code"] == CAPTURED and finding["severity"] == Severity.NOTE:
            process = f"{finding['process']}: " if finding["process"] else ""
            yield Paragraph(f"{process}{finding['message']}")
