"""PyTorch data sets over shards.

A data set with numbered records needs only a sampler::

    client = IndexShardingClient("images", batch_size=32, dataset_size=len(images), shuffle=True)
    loader = DataLoader(images, batch_sampler=ShardBatchSampler(client), num_workers=4)
    for batch in report_batches(loader, client):
        train(batch)

A data set whose records are read in sequence (files, tables, streams) is a `ShardedRecords`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from gangline.elastic.data.client import ShardingClient
from gangline.elastic.shards.dataset import Shard

T = TypeVar("T")


class ShardedRecords(IterableDataset[T]):
    """An iterable data set that reads shard after shard.

    Args:
        client: where shards come from.
        read: returns the records of a shard, all of them and in order. If it raises, the shard
            stays leased to the process: report it with ``client.report_shard_failed``.
    """

    def __init__(self, client: ShardingClient, read: Callable[[Shard], Iterable[T]]) -> None:
        self._client, self._read = client, read

    def __iter__(self) -> Iterator[T]:
        """Yield records until there are no more at present.

        Raises:
            RuntimeError: in a worker process of a loader, whose shards could not be reported.
        """
        if get_worker_info() is not None:
            raise RuntimeError(
                "shards are taken in the training process: give the DataLoader num_workers=0, or "
                "number the records and use ShardBatchSampler with any number of workers"
            )
        while shard := self._client.fetch_shard():
            yield from self._read(shard)
