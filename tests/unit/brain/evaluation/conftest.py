"""A history in a file, as the evaluator uses it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.brain.store.engine import Store, open_store
from unit.brain.evaluation.scaled_job import NOW_MS


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/brain.db", secret=b"s", clock_ms=lambda: NOW_MS)
    async with opened:
        yield opened
