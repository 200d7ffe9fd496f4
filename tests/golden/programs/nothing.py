"""Has no range at all."""

print("done")
