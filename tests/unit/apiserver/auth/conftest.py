"""A store of its own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.local.apiserver.storage.sqlite import StateDatabase
from gangline.local.apiserver.storage.store import ObjectStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened = ObjectStore(StateDatabase(tmp_path / "state.db"))
    yield opened
    await opened.close()
