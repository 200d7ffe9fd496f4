"""What tests of real launches share."""

from pathlib import Path

import pytest


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The `SCRIPT` of the test's module, as a file."""
    path = tmp_path / "script.py"
    path.write_text(request.module.SCRIPT)
    return path
