"""Data shards over a real master process: many clients, and the master killed while they work."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.elastic.data.client import (
    IndexShardingClient,
    open_shard_source,
)
from gangline.elastic.data.feed import ShardBatchSampler, report_batches
from integration.elastic.master.master_process import MasterProcess

pytestmark = pytest.mark.timeout(300)

SIZE = 6000
CLIENTS = 4


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterProcess]:
    master = MasterProcess(tmp_path).start()
    yield master
    master.kill()


def a_client(master: MasterProcess, number: int) -> IndexShardingClient:
    return IndexShardingClient(
        "corpus",
        batch_size=10,
        dataset_size=SIZE,
        shuffle=True,
        num_minibatches_per_shard=2,
        source=open_shard_source(
            {"DLROVER_MASTER_ADDR": master.address, "GANGLINE_JOB_SECRET": master.secret_text}
        ),
        worker=f"{number}/0",
    )


def test_no_record_is_lost_or_doubled_when_the_master_is_killed_again_and_again(
    master: MasterProcess,
) -> None:
    seen: list[int] = []
    errors: list[BaseException] = []

    def train(number: int) -> None:
        try:
            with a_client(master, number) as client:
                for batch in report_batches(ShardBatchSampler(client), client):
                    seen.extend(batch)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(i,), daemon=True) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for mark in (SIZE // 5, SIZE // 2):
        while len(seen) < mark and not errors and any(thread.is_alive() for thread in threads):
            threads[0].join(0.001)
        master.kill()
        master.start()
    for thread in threads:
        thread.join(200)
    assert errors == []
    assert Counter(seen) == Counter(range(SIZE))
