"""Values by the name of each event."""

from __future__ import annotations

import numpy as np
import pytest

from perfharness.trace.names import by_name


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_each_name_that_occurs_is_asked_for_once(dtype: type[np.signedinteger]) -> None:
    """127 is the last code of 8 bits, and -1 no name."""
    names, asked = [str(code) for code in range(128)], []

    def value(name: str) -> int:
        asked.append(name)
        return len(name)

    assert by_name(names, np.array([127, -1, 5, 127, 20], dtype=dtype), value).tolist() == [3, 0, 1, 3, 2]
    assert sorted(asked) == ["", "127", "20", "5"]
    assert by_name([], np.array([], dtype=dtype), value).tolist() == []
