"""Separate batches of equal names in a process and its children, because these are different programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfharness.model.result import Entries, Path, ProcessResult, Tree

CHILD = " (child process)"


def with_children_apart(
    results: Mapping[str, ProcessResult], launched_of: Mapping[str, str]
) -> dict[str, ProcessResult]:
    """Rename recorders of children with batches of their launched process (`launched_of`: by folder, no ranks)."""
    found = dict(results)
    for folder, result in results.items():
        launched = results.get(launched_of.get(folder, folder))
        if launched is None or launched is result:
            continue
        shared = {path[0] for path in {one.path for one in result.loops} & {one.path for one in launched.loops}}
        if shared:
            found[folder] = _renamed(result, {name: f"{name}{CHILD}" for name in shared})
    return found


def _renamed(result: ProcessResult, names: Mapping[str, str]) -> ProcessResult:
    def path(old: Path) -> Path:
        return (names.get(old[0], old[0]), *old[1:])

    def tree(old: Tree) -> Tree:
        return {names.get(name, name): value for name, value in old.items()}

    def entries() -> Entries:
        old = result.entries
        recorders = set(old.name[old.depth == 0].tolist())
        return replace(old, names=[names.get(one, one) if at in recorders else one for at, one in enumerate(old.names)])

    diagnosis = result.diagnosis
    if diagnosis is not None:
        diagnosis = replace(diagnosis, stages=[replace(one, path=path(one.path)) for one in diagnosis.stages])
    return replace(
        result,
        names=[names.get(one, one) for one in result.names],
        make_entries=entries,
        values={path(one): values for one, values in result.values.items()},
        mean_data=tree(result.mean_data),
        stats_minus_warmup=tree(result.stats_minus_warmup),
        loops=[replace(one, path=path(one.path)) for one in result.loops],
        outside=[replace(one, path=path(one.path)) for one in result.outside],
        of_others=frozenset(map(path, result.of_others)),
        diagnosis=diagnosis,
    )
