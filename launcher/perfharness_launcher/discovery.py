"""Find nsys on the machine and find out what it can do: version, importer, options. Nothing is assumed from a name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perfharness.model.plan import NsysInstall

NSYS_VARIABLE = "PERFHARNESS_NSYS"
"""Path of an nsys, looked at before all others."""

PROBE_TIMEOUT_S = 60
IMPORTER = "QdstrmImporter"

PLACES = (
    ("/opt/nvidia/nsight-systems*/*/bin/nsys", "Nsight Systems in /opt/nvidia"),
    ("/opt/nvidia/nsight-systems*/*/target-linux-*/nsys", "Nsight Systems in /opt/nvidia"),
    ("/usr/local/cuda*/bin/nsys", "a CUDA toolkit"),
    ("/usr/local/cuda*/nsight-systems*/target-linux-*/nsys", "a CUDA toolkit"),
    ("/usr/local/cuda*/nsight-systems*/bin/nsys", "a CUDA toolkit"),
    ("/usr/lib/nsight-systems/target-linux-*/nsys", "a package of the distribution"),
    ("/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys", "inside Nsight Compute"),
    ("/usr/local/cuda*/nsight-compute*/host/target-linux-*/nsys", "inside Nsight Compute"),
)

INSTALL_NSYS = "perfharness doctor --install-nsys"
"""The command that gets an nsys without root."""


def find_nsys(
    asked: Path | None, environ: Mapping[str, str], *, root: Path = Path("/"), project: Path | None = None
) -> tuple[NsysInstall, ...]:
    """Every nsys found, usable ones first, newest first; only `asked` where one is asked for.

    Args:
        root: where the absolute places are looked for.
        project: the checkout whose `.nsys` folder is looked into; None: this one.
    """
    if asked is not None:
        return (probe(asked, "--nsys"),)
    candidates = _distinct(_candidates(environ, root, project or Path(__file__).resolve().parents[2]))
    if not candidates:
        return ()
    with ThreadPoolExecutor(max_workers=4) as pool:
        installs = list(pool.map(lambda candidate: probe(*candidate), candidates))
    return tuple(sorted(installs, key=lambda install: (install.usable, install.version or ()), reverse=True))


def probe(path: Path, source: str) -> NsysInstall:
    """What one nsys can do."""
    if not path.exists():
        return NsysInstall(path, source=source, problems=(f"{path} does not exist",))
    if path.is_dir():
        return NsysInstall(path, source=source, problems=(f"{path} is a folder; name the nsys program in it",))
    if not os.access(path, os.X_OK):
        return NsysInstall(path, source=source, problems=(f"{path} is not executable",))
    version_text = _run([str(path), "--version"])
    match = re.search(r"Nsight Systems version (\S+)", version_text or "")
    if match is None:
        said = (version_text or "").strip().splitlines()
        what = f"to --version it says {said[0][:80]!r}" if said else "it does not answer --version"
        return NsysInstall(path, source=source, problems=(f"{path} is no Nsight Systems: {what}",))
    version = tuple(int(part) for part in re.findall(r"\d+", match.group(1).partition("-")[0])[:3])
    options = frozenset(re.findall(r"--([a-z][a-z0-9-]+)", _run([str(path), "profile", "--help"]) or ""))
    home = _home(path)
    importer, beside = find_importer(home)
    problems = _problems(path, home, importer, options)
    return NsysInstall(
        path=path,
        version=version,
        version_text=match.group(1),
        importer=importer,
        importer_beside=beside,
        profile_options=options,
        cupti=_newest_cupti(home),
        source=source,
        problems=tuple(problems),
    )


def find_importer(home: Path | None) -> tuple[Path | None, bool]:
    """The importer that belongs to a `target-linux-*` folder, and whether nsys itself looks there.

    Nsight Systems has `host-linux-*` beside `target-linux-*`. Nsight Compute has the same importer in
    `host/linux-desktop-*`, where its nsys does not look and leaves the `.qdstrm` as it is.
    """
    if home is None:
        return None, False
    for pattern, beside in ((f"host-linux-*/{IMPORTER}", True), (f"linux-desktop-*/{IMPORTER}", False)):
        for importer in sorted(home.parent.glob(pattern)):
            return importer, beside
    return None, False


def missing_libraries(program: Path) -> list[str]:
    """Shared libraries that the loader does not find for `program`; empty where ldd cannot tell."""
    listing = _run(["ldd", str(program)]) or ""
    return sorted(set(re.findall(r"^\s*(\S+) => not found", listing, re.MULTILINE)))


def _problems(path: Path, home: Path | None, importer: Path | None, options: frozenset[str]) -> list[str]:
    problems = []
    if "trace" not in options:
        problems.append(f"{path} has no `profile --trace`")
    if home is None:
        return problems  # a wrapper script: where it keeps its importer cannot be seen; the run will tell
    if importer is None:
        problems.append(
            f"{path} has no importer ({IMPORTER}) in host-linux-* beside {home.name}: it records, but the recording"
            " cannot be turned into a report"
        )
    elif missing := missing_libraries(importer):
        problems.append(f"{importer} cannot run: {', '.join(missing)} not found")
    return problems


def _candidates(environ: Mapping[str, str], root: Path, project: Path) -> Iterator[tuple[Path, str]]:
    if named := environ.get(NSYS_VARIABLE):
        yield Path(named), f"the environment variable {NSYS_VARIABLE}"
    if on_path := shutil.which("nsys", path=environ.get("PATH", os.defpath)):
        yield Path(on_path), "PATH"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if toolkit := environ.get(variable):
            yield from ((found, variable) for found in sorted(Path(toolkit).glob("bin/nsys")))
    for pattern, source in PLACES:
        yield from ((found, source) for found in sorted(root.glob(pattern.lstrip("/"))))
    for folder, source in ((installed_nsys(environ), INSTALL_NSYS), (project / ".nsys", "scripts/install_nsys")):
        yield from ((found, source) for found in sorted(folder.glob("target-linux-*/nsys")))


def installed_nsys(environ: Mapping[str, str]) -> Path:
    """Where `perfharness doctor --install-nsys` puts an nsys: the user's folder for data of programs."""
    data = Path(environ.get("XDG_DATA_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local/share")
    return data / "perfharness" / "nsys"


def install_nsys(environ: Mapping[str, str]) -> int:
    """Get an nsys from Debian's packages, without root; returns the exit code. What is done goes to stderr."""
    script = Path(__file__).with_name("install_nsys.sh")
    command = ["bash", str(script), "--dest", str(installed_nsys(environ))]
    return subprocess.run(command, env=dict(environ), stdout=subprocess.DEVNULL, check=False).returncode


def _distinct(candidates: Iterable[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Each real file once, under the first place that named it."""
    distinct: dict[Path, tuple[Path, str]] = {}
    for path, source in candidates:
        distinct.setdefault(path.resolve(), (path, source))
    return list(distinct.values())


def _home(path: Path) -> Path | None:
    """The real `target-linux-*` folder of an nsys, or None where the path is a wrapper script."""
    folder = path.resolve().parent
    if folder.name.startswith("target-linux-"):
        return folder
    return folder if (folder / "libToolsInjection64.so").exists() else None


def _newest_cupti(home: Path | None) -> tuple[int, int] | None:
    if home is None:
        return None
    versions = [
        (int(match.group(1)), int(match.group(2)))
        for library in home.glob("libcupti.so.*")
        if (match := re.fullmatch(r"libcupti\.so\.(\d+)\.(\d+)", library.name))
    ]
    return max(versions, default=None)


def _run(command: list[str]) -> str | None:
    """Output of a short program, or None where it cannot be run."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace")
