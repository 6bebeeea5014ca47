"""Numbers and levels that no checkpoint can have."""

from pathlib import Path
from typing import Any

import pytest

from gangline.elastic.checkpoint import Checkpointer


@pytest.mark.parametrize(
    "wrong",
    [
        *({"keep": value} for value in (-1, 1.5, "3")),
        {"keep_every": -5},
        *({"interval": value} for value in (0, -1, "Auto", 2.5)),
        {"buffers": 0},
    ],
    ids=str,
)
def test_settings_that_are_impossible_are_refused_by_name(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} is "):
        Checkpointer(tmp_path / "folder", **wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", [-1, 1.0, "1", None])
def test_a_step_that_no_load_would_find_is_refused(step: Any) -> None:
    with pytest.raises(ValueError, match=r"^step is .* whole number of at least 0"):
        Checkpointer.__new__(Checkpointer).save(step, {})


@pytest.mark.parametrize("level", ["Storage", "disk", "", None, True])
def test_a_level_that_is_misspelt_is_refused_and_not_taken_for_memory(level: Any) -> None:
    with pytest.raises(ValueError, match="must be 'memory' or 'storage'"):
        Checkpointer.__new__(Checkpointer).save(1, {}, level)
