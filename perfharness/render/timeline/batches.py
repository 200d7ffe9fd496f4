"""Single batches below each other as a Chrome trace: each begins at 0, the slow one above the typical one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfharness.analysis.stages.batch_timeline import BatchTimeline
from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.render.timeline.chrome import text_file
from perfharness.render.timeline.tracks import FIRST_MADE_ID, name_process


def write_batches(groups: Sequence[Sequence[BatchTimeline]], path: Path) -> None:
    """Write groups of batches, one below the other; gzip where the name ends in `.gz`.

    Times are microseconds since the begin of each batch. Raises `ResultError` where there is no batch.
    """
    named = [
        (
            f"{'slow request' if batch.which == 'worst' else batch.which}: {batch.process}, batch {batch.batch_index}",
            batch,
        )
        for group in groups
        for batch in group
    ]
    if not named:
        raise ResultError(f"There is no batch to draw, so {path} was not written.")
    with replacing(path) as temporary, text_file(temporary, path.suffix == ".gz") as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        file.write(
            ",\n".join(line for place, (name, batch) in enumerate(named) for line in _events(batch, name, place))
        )
        file.write("\n]}\n")


def _events(batch: BatchTimeline, name: str, place: int) -> Iterator[str]:
    pid = FIRST_MADE_ID + place
    yield from name_process(pid, name, place)
    rows = {row: number + 1 for number, row in enumerate(batch.rows)}
    for row, tid in rows.items():
        yield _line(ph="M", name="thread_name", pid=pid, tid=tid, args={"name": row})
        yield _line(ph="M", name="thread_sort_index", pid=pid, tid=tid, args={"sort_index": tid})
    for bar in sorted(batch.bars, key=lambda bar: (bar.start_ms, -bar.end_ms)):
        arguments = {} if bar.sum_ms is None else {"joined": bar.count, "sum_ms": round(bar.sum_ms, 6)}
        yield _line(
            ph="X", name=bar.name or f"{bar.count} {bar.kind}s", cat=bar.kind, pid=pid, tid=rows[bar.row],
            ts=round(1000 * bar.start_ms, 3), dur=round(1000 * (bar.end_ms - bar.start_ms), 3), args=arguments,
        )  # fmt: skip


def _line(**event: object) -> str:
    return json.dumps(event, separators=(",", ":"))
