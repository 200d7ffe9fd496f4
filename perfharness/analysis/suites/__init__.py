"""Cases of `perfharness bench`: figures, names, costs, recommendation."""
