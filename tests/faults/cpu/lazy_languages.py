"""Models of languages are loaded when the first text needs them. Mended: before the service starts."""

import pickle
import tempfile
from pathlib import Path

from tests.faults.frame import MENDED, count, network, run

BATCHES, TEXTS = 40, 4
LANGUAGES = ("en", "de", "fr", "it", "es")
loaded = {}


def write(number, language):
    counts = [(f"{language}{n * 7919 % 999983}", 1 + n % (number + 3)) for n in range(500_000)]
    Path(folder, language).write_bytes(pickle.dumps(counts))


def load(language):
    counts = pickle.loads(Path(folder, language).read_bytes())  # fault
    total = sum(number for _, number in counts)  # fault
    return {ngram: number / total for ngram, number in counts}  # fault


def get(language):
    if language not in loaded:
        loaded[language] = load(language)  # fault
        count()
    return loaded[language]


def score(text, frequencies):
    return sum(frequencies.get(text[start : start + 5], 1e-9) for start in range(len(text)))


def guess_script(text):
    return max("latin", "greek", key=lambda name: sum(ord(c) < 591 for c in text) * (name == "latin"))


def script(index):
    language = LANGUAGES[index * len(LANGUAGES) // BATCHES]
    texts = [f"{language} text {number} of somebody " * 400 for number in range(TEXTS)]
    for text in texts:
        guess_script(text)
    return language, texts


def detect(found):
    language, texts = found
    return [score(text, get(language)) for text in texts]


with tempfile.TemporaryDirectory() as folder:
    for number, language in enumerate(LANGUAGES):
        write(number, language)
    for language in LANGUAGES if MENDED else LANGUAGES[:1]:
        get(language)
    count(-len(loaded))
    run(BATCHES, TEXTS, script=script, detect=detect, translate=network(64, 256, 60))
