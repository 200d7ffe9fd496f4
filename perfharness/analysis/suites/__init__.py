"""Cases of `perfharness bench`: their figures and names, what they cost, which to take."""
