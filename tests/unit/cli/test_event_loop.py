"""Short work runs without looking for garbage, and leaves the process as it was."""

import gc

import pytest

from gangline.cli.event_loop import run_briefly


async def collects() -> bool:
    return gc.isenabled()


async def fails() -> None:
    raise ValueError("as expected")


def test_garbage_is_looked_for_again_behind_short_work() -> None:
    assert gc.isenabled()
    assert run_briefly(collects()) is False
    assert gc.isenabled()
    with pytest.raises(ValueError, match="as expected"):
        run_briefly(fails())
    assert gc.isenabled()
