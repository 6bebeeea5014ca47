"""Kills at every point of a save, a restore, a write and a commit, with a check after each.

By default 200 training processes, which are forks, and 12 savers, which are started anew.
``GANGLINE_CHECKPOINT_KILLS=1000`` kills as many training processes, and a third as many savers.
"""

import os
from pathlib import Path
from typing import Any

import pytest

WISH = os.environ.get("GANGLINE_CHECKPOINT_KILLS")
KILLS = int(WISH or 200)
SAVER_KILLS = int(WISH or 36) // 3


@pytest.mark.timeout(600)
def test_a_killed_worker_continues_from_the_newest_returned_save(play: Any, tmp_path: Path) -> None:
    seen = play("kill_range.py", str(tmp_path), str(KILLS))
    assert seen["kills"] == KILLS
    assert seen["lost nodes"] >= KILLS // 36
    assert seen["step"] > 0


@pytest.mark.timeout(600)
def test_a_killed_saver_loses_no_save_and_leaves_nothing_incomplete(
    play: Any, tmp_path: Path
) -> None:
    seen = play("kill_range.py", str(tmp_path), str(SAVER_KILLS), "saver")
    assert seen["kills"] == SAVER_KILLS
    assert {"sealed", "part-entry"} < set(seen["points"]), "each life had a point of its own"
