"""Finding nsys in made-up places; the programs are real scripts that are really run."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness_launcher.nsys import find_nsys, probe

HELP = """
\t--gpu-metrics-device=

\t   Collect GPU Metrics from specified devices; 'none' or GPU IDs.

\t-t, --trace=

\t   Possible values are 'cuda', 'nvtx', 'cublas-verbose', 'osrt',
\t   'vulkan-annotations', 'python-gil' or 'none'.
\t   Default is 'cuda,nvtx,osrt,opengl'. Application scope.

\t--trace-fork-before-exec=

\t   Possible values are 'true' or 'false'.
"""


def make_nsys(path: Path, version: str = "2024.1.1.59-241134061245v0", *, target: bool = True) -> Path:
    """A program that answers `--version` and `profile --help` as nsys does."""
    folder = path / "target-linux-x64" if target else path
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nsys"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in --version) echo "NVIDIA Nsight Systems version {version}";;'
        f" profile) cat <<'EOF'\n{HELP}EOF\n;; esac\n"
    )
    program.chmod(0o755)
    return program


def make_importer(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    importer = folder / "QdstrmImporter"
    importer.write_text("#!/bin/sh\n")
    importer.chmod(0o755)
    return importer


def make_whole(path: Path, version: str = "2024.1.1.59-241134061245v0") -> Path:
    make_importer(path / "host-linux-x64")
    return make_nsys(path, version)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root without anything, which is also the project and the current folder."""
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.chdir(root)
    return root


def found(root: Path, environ: dict[str, str] | None = None) -> list[Path]:
    return [install.path for install in find_nsys(None, {"PATH": "", **(environ or {})}, root=root, project=root)]


@pytest.mark.parametrize(
    "place",
    [
        "opt/nvidia/nsight-systems/2024.1.1",
        "opt/nvidia/nsight-systems-cli/2024.1.1",
        "usr/local/cuda-12.4/nsight-systems-2024.1.1",
        "usr/lib/nsight-systems",
        ".nsys",
    ],
)
def test_places(nowhere: Path, place: str) -> None:
    assert found(nowhere) == []
    nsys = make_whole(nowhere / place)
    assert found(nowhere) == [nsys]


def test_path_and_environment(nowhere: Path) -> None:
    on_path = make_whole(nowhere / "a")
    named = make_whole(nowhere / "b", "2023.1.1.1-1v0")
    environ = {"PATH": str(on_path.parent), "PERFHARNESS_NSYS": str(named)}
    assert found(nowhere, environ) == [named, on_path]
    assert [install.path for install in find_nsys(on_path, environ, root=nowhere, project=nowhere)] == [on_path]


def test_newest_first_and_each_real_file_once(nowhere: Path) -> None:
    old = make_whole(nowhere / "opt/nvidia/nsight-systems/2023.4.4", "2023.4.4.54-1v0")
    new = make_whole(nowhere / "opt/nvidia/nsight-systems/2024.10.1", "2024.10.1.1-1v0")
    (old.parent.parent / "bin").mkdir()
    (old.parent.parent / "bin" / "nsys").symlink_to(old)
    installs = find_nsys(None, {"PATH": ""}, root=nowhere, project=nowhere)
    assert [install.path.resolve() for install in installs] == [new, old]


def test_a_usable_one_comes_before_a_newer_broken_one(nowhere: Path) -> None:
    broken = make_nsys(nowhere / "opt/nvidia/nsight-systems/2025.1.1", "2025.1.1.1-1v0")
    whole = make_whole(nowhere / "opt/nvidia/nsight-systems/2023.4.4", "2023.4.4.54-1v0")
    assert found(nowhere) == [whole, broken]
    (problem,) = probe(broken, "here").problems
    assert "QdstrmImporter" in problem


def test_inside_nsight_compute_the_importer_lies_apart_and_a_wrapper_script_is_taken_at_its_word(
    nowhere: Path,
) -> None:
    host = nowhere / "opt/nvidia/nsight-compute/2025.3.1/host"
    inside = make_nsys(host, "2025.3.1.1-1v0")
    importer = make_importer(host / "linux-desktop-glibc_2_11_3-x64")
    wrapper = make_nsys(nowhere / "usr/local/cuda-12.4/bin", target=False)
    installs = find_nsys(None, {"PATH": ""}, root=nowhere, project=nowhere)
    assert [(one.path, one.importer, one.usable, one.source) for one in installs] == [
        (inside, importer, True, "inside Nsight Compute"),
        (wrapper, None, True, "a CUDA toolkit"),
    ]


def test_an_importer_that_lacks_a_library_is_named_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys = make_whole(tmp_path)
    ldd = tmp_path / "bin" / "ldd"
    ldd.parent.mkdir()
    ldd.write_text("#!/bin/sh\nprintf '\\tlibssh.so => not found\\n\\tlibc.so.6 => /lib/libc.so.6 (0x1)\\n'\n")
    ldd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ldd.parent}:/usr/bin:/bin")
    (problem,) = probe(nsys, "here").problems
    assert "libssh.so" in problem


def test_what_an_nsys_can_do_is_asked(tmp_path: Path) -> None:
    nsys = make_whole(tmp_path)
    for version in ("11.8", "12.4"):
        (nsys.parent / f"libcupti.so.{version}").touch()
    install = probe(nsys, "here")
    assert install.usable
    assert (install.version, install.version_text) == ((2024, 1, 1), "2024.1.1.59-241134061245v0")
    assert install.importer == tmp_path / "host-linux-x64" / "QdstrmImporter"
    assert install.profile_options == {"gpu-metrics-device", "trace", "trace-fork-before-exec"}
    assert install.traces == {"cuda", "nvtx", "cublas-verbose", "osrt", "vulkan-annotations", "python-gil", "none"}
    assert install.gpu_metrics_option == "gpu-metrics-device"
    assert install.cupti == (12, 4)
