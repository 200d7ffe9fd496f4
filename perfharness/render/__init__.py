"""Result models in, text, charts and timelines out; no arithmetic and no joins here."""
