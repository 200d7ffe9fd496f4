"""Result models in, what people look at out; no arithmetic and no joins here."""
