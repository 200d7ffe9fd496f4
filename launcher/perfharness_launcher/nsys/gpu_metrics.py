"""Whether nsys can sample a GPU's counters here, found by a trial: where it cannot, it refuses to start the script.

Counters may be reserved to administrators, taken by another profiler, or not there (old GPUs, MIG).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfharness_launcher.nsys.command_line import (
    GPU_METRICS_HZ,
    GPU_METRICS_READINGS,
    NsysInstall,
    gpu_metrics_options,
)

TIMEOUT_S = 60
LOWEST_HZ = 10
"""Of all versions."""
VISIBLE = "cuda-visible"
"""What newer versions call the GPUs of CUDA_VISIBLE_DEVICES."""
NOT_SUPPORTED = "Some GPUs are not supported"
REFUSED = re.compile(r"illegal|insufficient|privilege|permission|not supported|no such gpu|unrecognised", re.IGNORECASE)
BUSY = re.compile(r"already under profiling", re.IGNORECASE)
"""What newer versions say behind each GPU that another profiler samples, before or after that none is supported."""

PERMISSION = re.compile(r"privilege|permission", re.IGNORECASE)


@dataclass(frozen=True)
class GpuSampling:
    """Which GPUs nsys is to sample, in its words (`0`, `cuda-visible`); or None, and why it cannot, one sentence."""

    gpus: str | None
    reason: str = ""

    @property
    def hint(self) -> str:
        """What helps against the reason, where that is known."""
        if BUSY.search(self.reason):
            return "let the other profiler end, and launch again with --explain"
        if PERMISSION.search(self.reason):
            return "https://developer.nvidia.com/ERR_NVGPUCTRPERM says how users may read them"
        return ""


def gpu_metrics_hz(expected_s: float | None) -> int:
    """How often to sample a run of that length, so that its trace does not fill the disk."""
    if not expected_s:
        return GPU_METRICS_HZ
    return max(LOWEST_HZ, min(GPU_METRICS_HZ, int(GPU_METRICS_READINGS / expected_s)))


def find_gpu_metrics(nsys: NsysInstall, environ: Mapping[str, str]) -> GpuSampling:
    """What to sample for a process with that environment; takes a few seconds."""
    if nsys.gpu_metrics_option is None:
        return GpuSampling(None, f"nsys {nsys.version_text} has no option for it")
    listing = _run([str(nsys.path), "profile", f"--{nsys.gpu_metrics_option}=help"], environ)
    candidates = list(_candidates(listing.stdout))
    refusal = _refusal(listing.stdout, "not available|not found|not supported|privilege|permission")
    for gpus in candidates:
        refusal = _trial(nsys, gpus, environ)
        if refusal is None:
            return GpuSampling(gpus)
    if not candidates and VISIBLE not in listing.stdout and len(_listed(listing.stdout)) > 1:
        refusal = "this version cannot be told to sample the GPUs that a process uses, and there are several"
    return GpuSampling(None, refusal or "it lists no GPU that it can sample")


def _candidates(listing: str) -> Iterator[str]:
    """The only GPU there is, by its number, which every version understands; else those that the process may use."""
    listed = _listed(listing)
    if len(listed) == 1:
        yield listed[0]
    if listed and VISIBLE in listing:
        yield VISIBLE


def _listed(listing: str) -> list[str]:
    return re.findall(r"^\s*(\d+):\s", listing.partition(NOT_SUPPORTED)[0], re.MULTILINE)


def _trial(nsys: NsysInstall, gpus: str, environ: Mapping[str, str]) -> str | None:
    """Why nsys does not sample these GPUs while a program does nothing; None where it does."""
    program = shutil.which("true") or "/bin/true"
    with tempfile.TemporaryDirectory(prefix="perfharness-") as folder:
        options = ["--trace=nvtx", *gpu_metrics_options(nsys, gpus), f"--output={Path(folder) / 'trial'}"]
        done = _run([str(nsys.path), "profile", *options, program], {**environ, "TMPDIR": folder})
    if done.returncode == 0 and not REFUSED.search(done.stdout) and not BUSY.search(done.stdout):
        return None
    return _refusal(done.stdout, REFUSED.pattern) or f"a trial ended with exit code {done.returncode}"


def _run(command: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, stdout=f"{command[0]}: not available ({error})")


def _refusal(text: str, pattern: str) -> str | None:
    """That another profiler has the GPUs, else the first line that says why not, without a full stop."""
    if BUSY.search(text):
        return "another profiler samples it (nsys: Already under profiling)"
    found = [line.strip() for line in text.splitlines() if re.search(pattern, line, re.IGNORECASE)]
    return found[0].rstrip(".") if found else None
