"""Result models as text on a terminal."""
