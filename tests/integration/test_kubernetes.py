"""The examples for Kubernetes: what checks manifests takes them, and launches read what their pods would be given."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launches import CHECKOUT, environment, manifest
from tests.integration.test_nodes import SCRIPT, launch_all, mean_of

pytestmark = pytest.mark.slow

EXAMPLES = CHECKOUT / "docs" / "examples" / "kubernetes"
MANIFESTS = sorted(path.name for path in EXAMPLES.glob("*.yaml"))


def documents(name: str) -> dict[str, dict[str, Any]]:
    """What a manifest creates, by kind."""
    yaml = pytest.importorskip("yaml")
    return {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / name).read_text("utf-8"))}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_fit_the_schemas(name: str) -> None:
    pytest.importorskip("kubernetes_validate")
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def names_on_server(name: str, url: str) -> list[list[str]]:
    """The Jobs of a server after a manifest was created, and after it was deleted."""
    client, utils = pytest.importorskip("kubernetes.client"), pytest.importorskip("kubernetes.utils")
    configuration = client.Configuration()
    configuration.host = url.rstrip("/")
    with client.ApiClient(configuration) as api:
        utils.create_from_yaml(api, str(EXAMPLES / name), namespace="default")
        jobs, found = client.BatchV1Api(api), list[list[str]]()
        found.append([one.metadata.name for one in jobs.list_namespaced_job("default").items])
        jobs.delete_namespaced_job(documents(name)["Job"]["metadata"]["name"], "default")
        found.append([one.metadata.name for one in jobs.list_namespaced_job("default").items])
    return found


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_client_creates_lists_and_deletes_them(name: str) -> None:
    kmock = pytest.importorskip("kmock")

    async def on_a_server() -> list[list[str]]:
        async with kmock.Server(kmock.KubernetesEmulator(), host="127.0.0.1") as server:
            return await asyncio.to_thread(names_on_server, name, str(server.url))

    assert asyncio.run(on_a_server()) == [[documents(name)["Job"]["metadata"]["name"]], []]


def pod(name: str, index: int, folder: Path, address: str) -> tuple[tuple[object, ...], dict[str, str]]:
    """The arguments of `launch` and the environment in the pod of an index, with node 0 at another address."""
    found = documents(name)
    job, spec = found["Job"], found["Job"]["spec"]["template"]["spec"]
    assert job["spec"].get("completions", 1) > index
    values = {"KUBERNETES_SERVICE_HOST": "192.0.2.1"}
    if job["spec"].get("completionMode") == "Indexed":
        values["JOB_COMPLETION_INDEX"] = str(index)
    for one in spec["containers"][0].get("env", ()):
        source = next(iter(one.get("valueFrom", ())), "value")
        values[one["name"]] = {
            "value": one.get("value", ""),
            "secretKeyRef": "a secret of this test",
            "fieldRef": f"{job['metadata']['name']}-{index}",
        }[source]
    if "PERFHARNESS_COORDINATOR" in values:
        service = found["Service"]
        assert service["metadata"]["name"] == spec["subdomain"]
        assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
        host = f"{job['metadata']['name']}-0.{spec['subdomain']}"
        assert values["PERFHARNESS_COORDINATOR"] == f"{host}:{service['spec']['ports'][0]['port']}"
        values["PERFHARNESS_COORDINATOR"] = address
    words = [re.sub(r"\$\((\w+)\)", lambda word: values[word[1]], one) for one in spec["containers"][0]["command"]]
    assert words[:2] == ["perfharness", "launch"]
    is_shared = "persistentVolumeClaim" in next(one for one in spec["volumes"] if one["name"] == "results")
    volume = folder / ("volume" if is_shared else f"volume_{index}")
    places = {"/results": str(volume), "app.py": str(folder / "app.py")}
    return tuple(places.get(one, one.replace("/results/", f"{volume}/")) for one in words[2:]), environment(**values)


RUNS = {
    "job.yaml": {"volume/run": [0, 1]},
    "job-no-volume.yaml": {"volume_0/run": [0, 1]},
    "single-pod.yaml": {"volume/run": [0, 0]},
    "shared-gpu.yaml": {"volume/profile-shared-0": [0], "volume/profile-shared-1": [0]},
}
"""The runs that a manifest leaves, with the node of each process."""


@pytest.mark.parametrize("name", MANIFESTS)
def test_launches_make_the_runs_that_a_manifest_promises(name: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SCRIPT)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    pods = range(documents(name)["Job"]["spec"].get("completions", 1))
    for done in launch_all(*(pod(name, index, tmp_path, address) for index in pods)):
        assert done.returncode == 0, done.stderr
    for folder, nodes in RUNS[name].items():
        run = tmp_path / folder
        assert [one["node"] for one in manifest(run)["processes"]] == nodes
        assert mean_of(run)["throughput"]["items_per_second"] > 0
        for one in manifest(run)["processes"]:
            startup = json.loads((run / one["folder"] / "benchmark.json").read_text())["startup"]
            assert startup["container_to_first_batch_ms"] > 0


def steps_of_the_image(root: Path) -> list[list[str]]:
    """The commands of the Containerfile, in an environment of Python as that of its base, below another root."""
    bin_, steps = root / "venv" / "bin", [[sys.executable, "-m", "venv", str(root / "venv")]]
    for step in re.findall(r"^(COPY|RUN) (.*)$", (EXAMPLES / "Containerfile").read_text("utf-8"), re.MULTILINE):
        kind, words = step[0], step[1].replace("/src", f"{root}/src")
        if kind == "COPY":
            *sources, target = words.split()
            steps += [["mkdir", "-p", str(root / "src")], ["cp", "-r", *sources, target]]
        else:
            steps.append(["bash", "-c", f"PATH={bin_}:$PATH; {words}"])
    return steps


@pytest.mark.timeout(1800)
def test_the_steps_of_the_image_run_and_it_measures_with_nsys(tmp_path: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("nsys in the image takes Debian's packages")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERFHARNESS_")}
    clean = {**kept, "XDG_DATA_HOME": str(tmp_path / "data"), "PIP_NO_COMPILE": "1"}
    for step in steps_of_the_image(tmp_path):
        subprocess.run(step, cwd=CHECKOUT, env=clean, check=True)
    (tmp_path / "app.py").write_text(SCRIPT)
    launch = [str(tmp_path / "venv" / "bin" / "perfharness"), "launch", "-o", "out", "app.py"]
    subprocess.run(launch, cwd=tmp_path, env=clean, check=True)
    assert manifest(tmp_path / "out")["tracer"]["kind"] == "nsys"
    assert mean_of(tmp_path / "out")["throughput"]["items_per_second"] > 0
