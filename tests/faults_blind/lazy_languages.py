"""Models of languages are loaded when the first text needs them: with warm requests behind it, the service stops again.

pemistahl/lingua#79, whylabs/langkit#278. Mended: all of them are loaded before the service starts.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, TEXTS = 40, 4
LANGUAGES = ("en", "de", "fr", "it", "es")
RNG = np.random.default_rng(16)


class LanguageModels:
    """Frequencies of n-grams, a file a language."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.loads = folder, 0
        self.loaded: dict[str, dict[str, float]] = {}

    def write(self) -> None:
        for number, language in enumerate(LANGUAGES):
            counts = [(f"{language}{n * 7919 % 999983}", 1 + n % (number + 3)) for n in range(500_000)]
            (self.folder / f"{language}.pickle").write_bytes(pickle.dumps(counts))

    def load(self, language: str) -> dict[str, float]:
        counts = pickle.loads((self.folder / f"{language}.pickle").read_bytes())  # fault
        total = sum(count for _, count in counts)  # fault
        self.loads += 1
        return {ngram: count / total for ngram, count in counts}  # fault

    def get(self, language: str) -> dict[str, float]:
        if language not in self.loaded:
            self.loaded[language] = self.load(language)  # fault
        return self.loaded[language]


def score(text: str, frequencies: dict[str, float]) -> float:
    return sum(frequencies.get(text[start : start + 5], 1e-9) for start in range(len(text)))


def guess_script(text: str) -> str:
    return max("latin", "greek", key=lambda name: sum(ord(c) < 591 for c in text) * (name == "latin"))


def detect(texts: list[str], models: LanguageModels, language: str) -> list[float]:
    return [score(text, models.get(language)) for text in texts]


def translate(states: np.ndarray, weights: np.ndarray) -> np.ndarray:
    for _ in range(60):
        states = np.tanh(states @ weights)
    return states


with tempfile.TemporaryDirectory() as folder:
    models = LanguageModels(Path(folder))
    models.write()
    for language in LANGUAGES if MENDED else LANGUAGES[:1]:
        models.get(language)
    models.loads = 0
    weights = RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            language = LANGUAGES[index * len(LANGUAGES) // BATCHES]
            texts = [f"{language} text {number} of somebody " * 400 for number in range(TEXTS)]
            with perf.batch(index, total_items=TEXTS):
                with perf.range("script"):
                    scripts = [guess_script(text) for text in texts]
                with perf.range("detect"):
                    scores = detect(texts, models, language)
                with perf.range("translate"):
                    translate(np.full((64, 256), 0.1, dtype=np.float32), weights)
    perf.finalize()
print(models.loads, "loads")
