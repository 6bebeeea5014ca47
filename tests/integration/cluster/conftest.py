"""Controllers of one API server; pods exist only as objects."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.kube.client.client import ApiClient
from gangline.local.controllers import manager
from gangline.local.controllers.context import ControllerSettings


@pytest.fixture
async def controllers(client: ApiClient, tmp_path: Path) -> AsyncIterator[ApiClient]:
    """Run the controllers; returns a client. Nodes are lost after two seconds of silence."""
    settings = ControllerSettings(volumes=tmp_path / "volumes", node_silence_s=2.0)
    task = asyncio.create_task(manager.run_controllers(client, settings))
    yield client
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
