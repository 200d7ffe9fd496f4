"""Check out another commit of a script in a temporary `git worktree`."""

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
    """A commit, checked out in a folder."""

    revision: str
    repository: Path
    folder: Path

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Change to the current folder in this commit, and adapt PYTHONPATH."""
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
        """Options to launch the script of this commit, with the settings of the working tree. Raises `UsageError`."""
        here = Path.cwd()
        if here.is_relative_to(self.repository) and self._there(here) is None:
            raise UsageError(f"--rev {self.revision} has no folder {here.relative_to(self.repository)}")
        script = Path(options.script)
        if not options.module and script.is_file() and self._there(script) is None:
            where = f"the commit in {self.repository} must contain the script"
            raise UsageError(f"--rev {self.revision} has no {script}; {where}")
        paths = {name: value.absolute() for name, value in options if isinstance(value, Path)}
        words = [self._word(word, here) for word in (options.script, *options.script_arguments)]
        return options.model_copy(update={**paths, "script": words[0], "script_arguments": tuple(words[1:])})

    def _word(self, word: str, here: Path) -> str:
        """Replace a path in the command line, unless it is relative and the current folder changes."""
        is_moved = here.is_relative_to(self.repository) and not Path(word).is_absolute()
        there = None if is_moved or not Path(word).exists() else self._there(Path(word))
        return word if there is None else str(there)

    def _there(self, path: Path) -> Path | None:
        """Path in this commit; None if missing or outside of the repository."""
        resolved = path.resolve()
        if not resolved.is_relative_to(self.repository):
            return None
        there = self.folder / resolved.relative_to(self.repository)
        return there if there.exists() else None


@contextmanager
def worktree_of(revision: str, script: str) -> Iterator[Worktree]:
    """Check out a commit in a temporary folder, and remove it at the end. Raises `UsageError`, `ToolNotFoundError`.

    Args:
        script: file in the repository, or a program that runs in the current folder.
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
    """Output of git, or None if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ToolNotFoundError("--rev needs git, which is not installed") from error
    return done.stdout.strip() if done.returncode == 0 else None
