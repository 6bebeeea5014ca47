"""Kills at every point of a save, a restore, a write and a commit, each time looked at afterwards.

``GANGLINE_CHECKPOINT_KILLS=200`` kills as often as you like; by default a sample.
"""

import os
from pathlib import Path
from typing import Any

import pytest

KILLS = int(os.environ.get("GANGLINE_CHECKPOINT_KILLS") or 36)


@pytest.mark.timeout(600)
def test_a_killed_worker_goes_on_from_the_newest_save_that_returned(
    play: Any, tmp_path: Path
) -> None:
    seen = play("kill_range.py", str(tmp_path), str(KILLS))
    assert seen["kills"] == KILLS
    assert seen["lost nodes"] >= KILLS // 36
    assert seen["step"] > 0


@pytest.mark.timeout(600)
def test_a_killed_saver_loses_no_save_and_leaves_nothing_half(play: Any, tmp_path: Path) -> None:
    kills = KILLS // 3
    seen = play("kill_range.py", str(tmp_path), str(kills), "saver")
    assert seen["kills"] == kills
    assert {"sealed", "part-entry"} < set(seen["points"]), "each life had a point of its own"
