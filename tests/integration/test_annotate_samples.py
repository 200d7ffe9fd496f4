"""Real pipelines annotated from outside: RapidOCR as its annotated twin, and PyTorch's modules by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.launches import codes, environment, manifest, read, run_to_the_end

ROOT = Path(__file__).resolve().parents[2]
OCR = ROOT / "samples" / "ocr_existing_pipeline"

NET = """
import torch
from torch import nn
from perfharness import PerfRecorder

perf = PerfRecorder("net")

class Block(nn.Sequential):
    def forward(self, x):
        if x.isnan().any():
            raise ValueError("not a number")
        return super().forward(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.blocks = nn.Sequential(*(Block(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)))
    def forward(self, x):
        return self.blocks(self.stem(x))

def run(model, x):
    try:
        return model(x)
    except ValueError:
        return None

def inner(x):
    return x + 1

@perf.annotate("decorated")
def double(x):
    return x * 2

class Ranges(nn.Sequential):
    def forward(self, x):
        with perf.range("block"):
            x = inner(super().forward(x))
        perf.push_range("pushed")
        x = double(x)
        perf.pop_range()
        for _, one in perf.batches([x], items=len, start=3, message="looped"):
            x = one + 1
        with perf.batch(0, message="in_block") as batch:
            batch.total_items = 3
            return x - 2

net, ranges = Net().eval(), Ranges(nn.Identity())
whole = torch.compile(ranges, backend="eager", fullgraph=True)  # which raises where it is not one graph
with torch.no_grad():
    for value in (0.0, float("nan"), 1.0):
        run(net, torch.full((4, 8), value))
    for _ in range(2):
        assert run(whole, torch.ones(4)).tolist() == [3.0] * 4
assert ranges(torch.ones(4)).tolist() == [3.0] * 4
perf.finalize()
"""


def launch(folder: Path, *arguments: str | Path, name: str = "out") -> Path:
    """Measure, and give the folder of the one process."""
    done = run_to_the_end(("-w", "0", "--tracer", "embedded", "-o", folder / name, *arguments), environment(), folder)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return folder / name / "proc_0_gpu_0"


def shape(tree: dict[str, Any]) -> dict[str, Any]:
    """Names in their order, nesting, counts and items of a tree of ranges; no times."""
    kept: dict[str, Any] = {key: tree[key] for key in ("count", "total_items", "warmup") if key in tree}
    return {**kept, **{name: shape(value) for name, value in tree.items() if isinstance(value, dict)}}


@pytest.mark.slow
def test_ocr_annotated_from_a_file_has_the_stages_of_its_annotated_twin(tmp_path: Path) -> None:
    pytest.importorskip("rapidocr", reason="samples/ocr_existing_pipeline/requirements.txt names what this needs")
    folder = tmp_path
    in_code = launch(folder, OCR / "ocr.py", "-b", "3", name="in_code")
    plain = ("--annotate", OCR / "annotations.toml", OCR / "plain_ocr.py", "-b", "3", "-o", folder)
    from_file = launch(folder, *plain, name="from_file")
    ours, twins = read(from_file, "benchmark.json"), read(in_code, "benchmark.json")
    assert shape(ours["data"]) == shape(twins["data"])
    assert list(ours["data"]["ocr"]["pipeline"]) == list(twins["data"]["ocr"]["pipeline"])
    assert shape(twins["data"])["ocr"]["pipeline"]["batch_1"]["total_items"] == 1
    assert codes(from_file.parent) == ["options-behind-script"]  # -o, which is the script's here
    assert read(folder, "texts.json") == read(in_code, "texts.json") == read(OCR, "images/texts.json")
    counts = [
        [{key: recorder[key] for key in ("name", "domain", "ranges", "batches", "items", "finalized")}]
        for process in (in_code, from_file)
        for recorder in read(process, "recorder.json")["recorders"]
    ]
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_pytorch_modules_are_stages_and_a_model_is_compiled_as_a_whole(tmp_path: Path) -> None:
    """A forward call that fails leaves nothing open; of compiled code no range is made, and all are named."""
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "net.toml").write_text(
        '[[batch]]\nfunction = "__main__:run"\nname = "batch"\nitems = "len(x)"\n'
        '[[range]]\nfunction = "__main__:inner"\n'
    )
    process = launch(tmp_path, "--annotate", "net.toml", "--annotate-torch", "2", "net.py")
    tree = shape(read(process, "benchmark.json")["data"])["net"]
    inside = {"stem": {"count": 1}, "blocks": {"count": 1, "blocks.0": {"count": 1}, "blocks.1": {"count": 1}}}
    cut_short = {"stem": {"count": 1}, "blocks": {"count": 1, "blocks.0": {"count": 1}}}
    batches = [tree[f"batch_{index}"] for index in range(5)]
    assert [one["total_items"] for one in batches] == [4] * 5
    assert [one.get("Net") for one in batches[:3]] == [{"count": 1, **one} for one in (inside, cut_short, inside)]
    assert [one.get("Ranges") for one in batches[3:]] == [{"count": 1}] * 2
    assert set(tree["Ranges"]) == {"count", "total_items", "block", "pushed", "looped_3", "in_block_0"}
    recorder = read(process, "recorder.json")
    assert [(one["finalized"], one["open_ranges"]) for one in recorder["recorders"]] == [(True, [])]
    assert recorder["compiled_ranges"] == ["block", "decorated", "in_block", "looped", "pushed"]
    found = [one["message"] for one in manifest(process.parent)["findings"]]
    assert any(one.startswith("__main__:inner") for one in found)


@pytest.mark.slow
def test_modules_come_under_the_stages_that_the_script_annotated_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    sample = ROOT / "samples" / "image_classification.py"
    process = launch(tmp_path, "--annotate-torch", "1", sample, "-b", "5")
    data = read(process, "benchmark.json")["data"]
    assert set(data) == {"image_classification"}
    batch = data["image_classification"]["pipeline"]["batch_0"]
    assert {"decode", "preprocess", "inference", "postprocess"} <= set(batch)
    (network,) = shape(batch["inference"]).keys() - {"count"}
    assert len(shape(batch["inference"])[network]) > 1
    assert len(read(process, "recorder.json")["recorders"]) == 1
