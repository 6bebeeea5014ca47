"""What people are told while the master cannot be reached, and for how long it is tried."""

import logging
import re

import pytest

from gangline.elastic.agent.arrival import arrived
from gangline.elastic.agent.world import MeetingError
from gangline.elastic.protocol.client import Client
from gangline.elastic.protocol.seal import Secret

SECRET = Secret(b"s" * 32)
NOWHERE = "train-master.invalid"


async def test_a_name_that_does_not_resolve_is_told_at_once_and_tried_for_the_stated_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Client(f"{NOWHERE}:29400", SECRET) as client:
        with pytest.raises(MeetingError) as failure:
            await arrived(client, 1.0)
        assert client.unknown_name == NOWHERE
    (told,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    words = f"the name {NOWHERE} does not resolve: "
    assert re.match(rf"waiting for the master until \d\d:\d\d:\d\d: {words}", told.getMessage())
    expected = f"no answer from the master at {NOWHERE}:29400 for 1 s: {words}"
    assert str(failure.value).startswith(expected)


async def test_a_port_where_nobody_listens_is_tried_for_the_stated_time(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(f"127.0.0.1:{unused_tcp_port}", SECRET) as client:
        with pytest.raises(MeetingError, match=rf":{unused_tcp_port} for 1 s: .*Connect call"):
            await arrived(client, 1.0)
        assert client.unknown_name == ""
    assert caplog.records == [], "it may be on its way"
