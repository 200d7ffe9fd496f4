"""A node's part of a launch: join before its processes start, give the results to node 0 at the end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from perfharness.cluster.join import Part, join
from perfharness.cluster.meeting import Meeting, Say, meeting
from perfharness.cluster.member import Member
from perfharness.cluster.member import join as join_meeting
from perfharness.cluster.node import find_node, refuse_elastic
from perfharness.files import is_own_folder
from perfharness.model.manifest import EXPLAIN_NAME
from perfharness_launcher.launch import FinishedRun
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.staging import has_name_of_a_run


@dataclass(frozen=True)
class NodePart:
    """Part of the launch on this node. On node 0, `output_dir` is for the joined results; only it has a `meeting`."""

    member: Member
    output_dir: Path
    meeting: Meeting | None

    def complete(self, run: FinishedRun) -> None:
        """Add the node to the manifest; on node 0, wait for the other parts and join them. Raises `OSError`."""
        run.replace_manifest(run.manifest.model_copy(update={"node": self.member.record()}))
        if self.meeting is None:
            return
        parts = [Part(run.folder, run.manifest)]
        for part in map(Part.read, self.meeting.wait_for_results(run.folder).values()):
            node = None if part is None else part.manifest.node
            if part is not None and node is not None and node.launch == self.member.launch:
                parts.append(part)
        run.replace_manifest(join(parts, run.folder, shutil.move, self.meeting.why_missing))
        for part in parts[1:]:
            _clear(part.folder)


def _clear(folder: Path) -> None:
    """Remove the rest of a part whose processes have been moved."""
    for path in folder.iterdir():
        if is_own_folder(path) and (path.name == EXPLAIN_NAME or has_name_of_a_run(path.name)):
            shutil.rmtree(path)
        elif has_name_of_a_run(path.name):
            path.unlink()
    with suppress(OSError):  # not empty: an earlier run of the node
        folder.rmdir()


@contextmanager
def taking_part(options: LaunchOptions, environ: Mapping[str, str], say: Say) -> Iterator[NodePart | None]:
    """Join the launch while the block runs; yield None with one node. Raises `UsageError`, `LaunchError`."""
    node = find_node(environ)
    if node.count == 1:
        yield None
        return
    refuse_elastic([*options.python_command, options.script, *options.script_arguments])
    folder, timeout_s, met = options.output_dir.absolute(), options.barrier_timeout_s, None
    with ExitStack() as stack:
        if node.rank == 0:
            met, node = stack.enter_context(meeting(node, folder, timeout_s, say))
        member = join_meeting(node, folder, timeout_s, say)
        stack.callback(member.close)
        yield NodePart(member, folder if met else folder / f"node_{node.rank}", met)
