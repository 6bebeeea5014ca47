"""Short coroutines run without garbage collection, which is enabled again afterwards."""

import gc

import pytest

from gangline.cli.event_loop import run_without_gc


async def collects() -> bool:
    return gc.isenabled()


async def fails() -> None:
    raise ValueError("as expected")


def test_garbage_collection_is_enabled_after_short_work() -> None:
    assert gc.isenabled()
    assert run_without_gc(collects()) is False
    assert gc.isenabled()
    with pytest.raises(ValueError, match="as expected"):
        run_without_gc(fails())
    assert gc.isenabled()
