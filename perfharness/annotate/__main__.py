"""`python -m perfharness.annotate SCRIPT ARGUMENTS…`: run a script that is annotated from outside."""

from perfharness.annotate.entry import main

if __name__ == "__main__":
    main()
