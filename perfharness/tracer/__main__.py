"""`python -m perfharness.tracer SCRIPT ARGUMENTS…`: run a script under the embedded tracer."""

from perfharness.tracer.entry import main

if __name__ == "__main__":
    main()
