"""Result models as text, charts and timelines, without arithmetic and joins."""
