"""A scripted API server that commands use as their cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unit.cli.fake_api import FakeApi, serving


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApi]:
    async with serving(tmp_path) as (api, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setenv("HOME", str(tmp_path))
        yield api
