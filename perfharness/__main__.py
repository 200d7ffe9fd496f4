"""`python -m perfharness` is the command `perfharness`."""

from perfharness.cli.main import main

if __name__ == "__main__":
    main()
