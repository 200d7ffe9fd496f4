"""Another commit of a script, next to the working tree: a temporary `git worktree`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import LaunchError, ToolNotFoundError, UsageError
from perfharness_launcher.options import LaunchOptions


@dataclass(frozen=True)
class Worktree:
    """A commit in a folder of its own."""

    revision: str
    repository: Path
    folder: Path

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Work where the current folder is in this commit, with its paths on PYTHONPATH."""
        here, python_path = Path.cwd(), os.environ.get("PYTHONPATH")
        os.chdir(self._there(here) or here)
        if python_path is not None:
            entries = python_path.split(os.pathsep)
            os.environ["PYTHONPATH"] = os.pathsep.join(str(self._there(Path(one)) or one) for one in entries)
        try:
            yield
        finally:
            os.chdir(here)
            if python_path is not None:
                os.environ["PYTHONPATH"] = python_path

    def options(self, options: LaunchOptions) -> LaunchOptions:
        """The launch with the script of this commit. Settings are those of the working tree.

        Raises `UsageError` where the commit does not have the script, or not the current folder.
        """
        here = Path.cwd()
        if here.is_relative_to(self.repository) and self._there(here) is None:
            raise UsageError(f"--rev {self.revision} has no folder {here.relative_to(self.repository)}")
        script = Path(options.script)
        if not options.module and script.is_file() and self._there(script) is None:
            where = f"the script has to be in the repository {self.repository}, and in that commit"
            raise UsageError(f"--rev {self.revision} has no {script}; {where}")
        paths = {name: value.absolute() for name, value in options if isinstance(value, Path)}
        words = [self._word(word, here) for word in (options.script, *options.script_arguments)]
        return options.model_copy(update={**paths, "script": words[0], "script_arguments": tuple(words[1:])})

    def _word(self, word: str, here: Path) -> str:
        """A word of the command line; a relative path means the other file, where the current folder is another."""
        is_moved = here.is_relative_to(self.repository) and not Path(word).is_absolute()
        there = None if is_moved or not Path(word).exists() else self._there(Path(word))
        return word if there is None else str(there)

    def _there(self, path: Path) -> Path | None:
        """The same path in this commit; None where it has none, or the path is not in the repository."""
        resolved = path.resolve()
        if not resolved.is_relative_to(self.repository):
            return None
        there = self.folder / resolved.relative_to(self.repository)
        return there if there.exists() else None


@contextmanager
def worktree_of(revision: str, script: str) -> Iterator[Worktree]:
    """Check a commit out into a temporary folder, which is removed at the end.

    Args:
        script: a file of the repository, or a program that is run in the current folder.

    Raises `UsageError` where there is no repository or no such commit, `ToolNotFoundError` without git.
    """
    around = Path(script).resolve().parent if Path(script).is_file() else Path.cwd()
    root = _git(around, "rev-parse", "--show-toplevel")
    if root is None:
        raise UsageError(f"--rev {revision}: {around} is not in a git repository")
    commit = _git(around, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        raise UsageError(f"--rev {revision}: {root} has no such commit, branch or tag; see `git log`")
    with tempfile.TemporaryDirectory(prefix="perfharness-rev-") as folder:
        tree = Path(folder).resolve() / (revision.replace("/", "-").strip("-.") or "tree")
        try:
            if _git(around, "worktree", "add", "--detach", str(tree), commit) is None:
                raise LaunchError(f"--rev {revision}: git worktree add failed; try it in {root}")
            yield Worktree(revision, Path(root), tree)
        finally:
            _git(around, "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ToolNotFoundError("--rev needs git, which is not installed") from error
    return done.stdout.strip() if done.returncode == 0 else None
