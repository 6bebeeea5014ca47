"""The master's state in a ConfigMap of a real API server."""

import asyncio

import pytest

from gangline.elastic.master.cluster_journal import ClusterJournal, open_journal
from gangline.elastic.master.journal import JournalError
from gangline.kube.client import Client

PATIENCE_S = 60.0


async def kept(journal: ClusterJournal, state: bytes) -> None:
    """Have a state written."""
    journal.begin(lambda: state)
    journal.append(b"something happened")
    await journal.close()


async def test_the_state_is_read_by_the_next_master(client: Client) -> None:
    first = await open_journal(client, "default", "train-journal")
    assert first.read() == (b"", [])
    await kept(first, b"the state" * 1000)
    second = await open_journal(client, "default", "train-journal")
    assert second.read() == (b"the state" * 1000, [])


async def test_a_master_that_was_replaced_is_told_to_end(client: Client) -> None:
    old = await open_journal(client, "default", "train-journal")
    new = await open_journal(client, "default", "train-journal")
    await kept(new, b"new")
    fenced = asyncio.Event()
    old.begin(lambda: b"old")
    keeper = asyncio.create_task(old.keep(fenced.set))
    old.append(b"something happened")
    await asyncio.wait_for(fenced.wait(), PATIENCE_S)
    await keeper
    assert (await open_journal(client, "default", "train-journal")).read()[0] == b"new"


async def test_a_config_map_that_was_deleted_is_made_again(client: Client) -> None:
    journal = await open_journal(client, "default", "train-journal")
    await client.delete(journal.resource, "train-journal", "default")
    await kept(journal, b"still here")
    again = await open_journal(client, "default", "train-journal")
    assert again.read()[0] == b"still here"


async def test_a_namespace_that_is_not_there_is_named(client: Client) -> None:
    with pytest.raises(JournalError, match="nowhere/train-journal"):
        await open_journal(client, "nowhere", "train-journal")
