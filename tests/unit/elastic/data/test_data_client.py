"""The data client and the feeds around it, over a ledger in the same process."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gangline.elastic.data.client import (
    IndexShardingClient,
    LocalShardSource,
    MasterShardSource,
    ShardingClient,
    ShardRefusedError,
    open_shard_source,
    worker_name,
)
from gangline.elastic.data.dataset import Shard, Stream
from gangline.elastic.data.feed import ShardBatchSampler, batch_length, report_batches
from gangline.elastic.data.torch_feed import ShardedRecords
from gangline.elastic.shards.events import ForgetDataset


@pytest.fixture
def source() -> LocalShardSource:
    return LocalShardSource()


def a_client(source: LocalShardSource, worker: str = "n/0", size: int = 100) -> IndexShardingClient:
    return IndexShardingClient(
        "d",
        batch_size=4,
        dataset_size=size,
        shuffle=True,
        num_minibatches_per_shard=2,
        source=source,
        worker=worker,
    )


def test_a_new_process_of_the_same_name_gets_the_leases_of_the_old_one(
    source: LocalShardSource,
) -> None:
    before = a_client(source)
    first = before.fetch_shard()
    assert first is not None
    again = a_client(source).fetch_shard()
    assert again is not None
    assert (again.start, again.end) == (first.start, first.end)
    assert again.lease != first.lease


def test_different_definitions_are_refused_with_a_message(source: LocalShardSource) -> None:
    a_client(source)
    with pytest.raises(ShardRefusedError, match="size=100, not 101"):
        a_client(source, size=101)


def test_a_failed_shard_is_leased_again_and_its_reason_recorded(source: LocalShardSource) -> None:
    client = a_client(source, size=8)
    for _ in range(3):
        assert client.fetch_shard() is not None
        client.report_all_task_error("unreadable")
    assert client.fetch_shard() is None
    assert client.ended
    state = client.state()
    assert state is not None
    assert [one.reasons for one in state.dead] == [("n/0/d: unreadable",) * 3]
    client.revive()
    assert client.fetch_shard() is not None


def test_a_checkpoint_and_the_model_agree_on_every_record(source: LocalShardSource) -> None:
    client = a_client(source)
    seen: Counter[int] = Counter()
    for _ in range(13):
        seen.update([index for index in [client.fetch_sample_index()] if index is not None])
    client.report_batch_done(13)
    checkpoint = client.get_shard_checkpoint()
    for _ in range(20):
        client.fetch_sample_index()
    client.report_batch_done(20)
    for source_then in (source, LocalShardSource()):
        later = a_client(source_then)
        assert later.restore_shard_from_checkpoint(checkpoint)
        rest = Counter(later.indices())
        later.report_batch_done(100)
        assert later.fetch_shard() is None
        assert later.ended
        assert seen + rest == Counter(range(100))


def test_a_master_without_its_state_gets_the_last_position(source: LocalShardSource) -> None:
    client = a_client(source)
    first = client.fetch_shard()
    assert first is not None
    client.report_batch_done(8)
    client.get_shard_checkpoint()
    source.apply(ForgetDataset("d"))
    records = list(client.indices())
    assert len(records) == 92
    assert not set(records) & set(client.records(first))


def test_a_data_set_can_be_reset(source: LocalShardSource) -> None:
    client = a_client(source)
    assert client.get_total_sample_num() == 100
    assert client.get_minibatch_count_per_epoch() == 25
    assert len(list(client.indices())) == 100
    client.report_batch_done(100)
    client.reset_dataset()
    client.clear_shard_queue()
    assert len(list(client.indices())) == 100


@pytest.mark.parametrize("workers", [0, 1])
def test_a_torch_loader_that_reads_ahead_is_accounted_for_exactly(
    source: LocalShardSource, workers: int
) -> None:
    client = a_client(source)
    data = TensorDataset(torch.arange(100))
    loader = DataLoader(data, batch_sampler=ShardBatchSampler(client, 7), num_workers=workers)  # type: ignore[arg-type]
    seen: list[int] = []
    for [batch] in report_batches(loader, client):
        state = client.state()
        assert state is not None
        assert state.done_records <= len(seen)
        assert len(seen) - state.done_records < 8
        seen += batch.tolist()
    assert Counter(seen) == Counter(range(100))


def test_a_torch_iterable_data_set_reads_shards_in_the_training_process_only() -> None:
    client = ShardingClient("d", 4, dataset_size=30, source=LocalShardSource(), worker="n/0")

    def read(shard: Shard) -> Iterator[torch.Tensor]:
        return (torch.tensor(float(one)) for one in client.records(shard))

    seen: list[float] = []
    for batch in report_batches(DataLoader(ShardedRecords(client, read), batch_size=4), client):
        seen += batch.tolist()
    assert seen == [float(one) for one in range(30)]


def test_a_stream_is_waited_for_until_it_is_closed(source: LocalShardSource) -> None:
    stream = Stream(name="s", shard_size=5, partitions={"p": 0})
    client = ShardingClient(batch_size=5, definition=stream, source=source, worker="n/0")
    seen: list[tuple[str, int, int]] = []

    def consume() -> None:
        while shard := client.fetch_shard():
            seen.append((shard.partition, shard.start, shard.end))
            client.report_batch_done(len(shard))

    thread = threading.Thread(target=consume)
    thread.start()
    writer = ShardingClient(batch_size=5, definition=stream, source=source, worker="w/0")
    writer.extend("p", 7)
    writer.extend("p", 9)
    writer.close_stream()
    thread.join(60)
    assert seen[0][0] == "p"
    assert [one for _, start, end in seen for one in range(start, end)] == list(range(9))
    assert client.ended


def test_batch_sizes_are_found_in_outputs_of_pipelines() -> None:
    tensor = torch.zeros(3, 2)
    for batch in (tensor, [tensor, tensor], (tensor, 1), {"x": tensor}, ["a", "b", "c"]):
        assert batch_length(batch) == 3


def test_the_environment_names_worker_and_source() -> None:
    assert worker_name({"NODE_ID": "7", "LOCAL_RANK": "2"}) == "7/2"
    both = {"GANGLINE_NODE_ID": "3", "NODE_ID": "of the script", "LOCAL_RANK": "2"}
    assert worker_name(both) == "3/2"
    assert worker_name({"GROUP_RANK": "1"}) == "1/0"
    assert isinstance(open_shard_source({"WORLD_SIZE": "1"}), LocalShardSource)
    assert isinstance(open_shard_source({"GANGLINE_MASTER_ADDR": "127.0.0.1:1"}), MasterShardSource)
    assert isinstance(
        open_shard_source({"GANGLINE_LOCAL_MASTER_ADDR": "127.0.0.1:1"}), MasterShardSource
    )
    with pytest.raises(LookupError, match="gangline run"):
        open_shard_source({"WORLD_SIZE": "2"})
