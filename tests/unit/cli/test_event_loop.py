"""The garbage collector is off for short work only."""

import gc

import pytest

from gangline.cli.event_loop import gc_disabled


def test_garbage_collection_is_enabled_after_short_work() -> None:
    assert gc.isenabled()
    with gc_disabled():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="as expected"), gc_disabled():
        raise ValueError("as expected")
    assert gc.isenabled()
