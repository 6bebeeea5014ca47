"""Waiting for the master: log messages and timeouts."""

import asyncio
import logging
import re
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.elastic.agent.membership.master_messages import (
    decode_modules,
    encode_modules,
    wait_for_master,
)
from gangline.elastic.agent.rendezvous import RendezvousError
from gangline.elastic.master.journal import FileJournal
from gangline.elastic.master.main import run_master
from gangline.elastic.master.settings import MasterSettings
from gangline.elastic.protocol.channel import JobSecret
from gangline.elastic.protocol.client import ClientIdentity, MasterClient
from gangline.elastic.protocol.messages import Hello

SECRET = JobSecret(b"s" * 32)
PATIENCE_S = 60.0
NOWHERE = "train-master.invalid"


async def test_unresolved_name_is_logged_immediately_and_tried_until_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with MasterClient(f"{NOWHERE}:29400", SECRET) as client:
        with pytest.raises(RendezvousError) as failure:
            await wait_for_master(client, 1.0)
        assert client.unresolved_host == NOWHERE
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    message = f"the name {NOWHERE} does not resolve: "
    assert re.match(rf"waiting for the master until \d\d:\d\d:\d\d: {message}", record.getMessage())
    expected = f"no reply from the master at {NOWHERE}:29400 for 1 s: {message}"
    assert str(failure.value).startswith(expected)


async def test_closed_port_is_tried_until_timeout(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with MasterClient(f"127.0.0.1:{unused_tcp_port}", SECRET) as client:
        with pytest.raises(RendezvousError, match=rf":{unused_tcp_port} for 1 s: .*Connect call"):
            await wait_for_master(client, 1.0)
        assert client.unresolved_host == ""
    assert caplog.records == [], "it may be on its way"


class OtherRelease(ClientIdentity):
    """An agent of another release."""

    def __init__(self, protocol: int) -> None:
        super().__init__(job="train")
        object.__setattr__(self, "client_id", str(protocol))

    def hello(self) -> Hello:
        number = int(self.client_id)
        return Hello(protocol=number, oldest=number, version=f"{number}.0", job=self.job)


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a master."""
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    settings = MasterSettings("train", hosts=("127.0.0.1",), port=0)
    serving = run_master(settings, SECRET, FileJournal(tmp_path / "journal"), stop, port.set_result)
    task = asyncio.create_task(serving)
    yield f"127.0.0.1:{await port}"
    stop.set()
    await task


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param(OtherRelease(0), "the agent's gangline must be newer", id="an older agent"),
        pytest.param(OtherRelease(99), "the master's gangline must be newer", id="a newer agent"),
        pytest.param(ClientIdentity(job="other"), "WrongJob", id="another job"),
    ],
)
async def test_incompatible_master_fails_immediately(
    master: str, name: ClientIdentity, message: str
) -> None:
    async with MasterClient(master, SECRET, name) as client:
        joining = wait_for_master(client, 1000 * PATIENCE_S)
        with pytest.raises(RendezvousError, match=message):
            await asyncio.wait_for(joining, PATIENCE_S)


def test_a_list_is_read_as_it_was_written():
    modules = ("torch", "torch.distributed", "numpy")
    assert decode_modules(encode_modules(modules)) == modules


@pytest.mark.parametrize("held", [b"", b"torch", zlib.compress(b"{"), zlib.compress(b'{"a": 1}')])
def test_invalid_list_is_empty(held):
    assert decode_modules(held) == ()


def test_only_names_are_imported():
    assert decode_modules(zlib.compress(b'["torch", 3, null]')) == ("torch",)
