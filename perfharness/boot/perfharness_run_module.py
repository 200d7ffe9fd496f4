"""`python perfharness_run_module.py MODULE ARGUMENTS…`: as `python -m MODULE ARGUMENTS…`; see `perfharness.boot`."""

import sys

if __name__ == "__main__":
    at_start = frozenset(sys.modules)
    import runpy

    from perfharness import script

    script.modules_at_start = at_start
    runpy._run_module_as_main(sys.argv.pop(1))  # type: ignore[attr-defined]  # what `python -m` calls
