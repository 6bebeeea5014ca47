"""Shards for input pipelines of frameworks, and reporting of the batches in use.

Pipelines read ahead, in threads and processes. So records are taken at their input and reported at
their output: a wrapper around the pipeline reports a batch when the next one is requested, which is
when the training step on it is over.

For PyTorch see also ``torch_feed``. With TensorFlow::

    number = tf.TensorSpec((), tf.int64)
    numbers = tf.data.Dataset.from_generator(client.indices, output_signature=number)
    batches = numbers.map(read).batch(32).prefetch(2)
    for batch in report_batches(batches, client):
        train(batch)
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from gangline.elastic.data.client import IndexShardingClient, ShardingClient

B = TypeVar("B")


def batch_length(batch: Any) -> int:
    """Return the number of records of a batch: the length of the first array in it."""
    if isinstance(batch, Mapping):
        return batch_length(next(iter(batch.values())))
    if isinstance(batch, tuple) or (isinstance(batch, list) and hasattr(batch[0], "shape")):
        return batch_length(batch[0])
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else len(batch)


def report_batches(batches: Iterable[B], client: ShardingClient) -> Iterator[B]:
    """Yield the batches of a pipeline over ``client``'s records; report each when it is used.

    The pipeline is restarted until all records of all epochs are done by any process, so that
    shards which other processes give back are trained on as well.
    """
    while not client.ended:
        for batch in batches:
            yield batch
            client.report_batch_done(batch_length(batch))


class ShardBatchSampler:
    """Batches of record numbers from shards: a ``batch_sampler`` for PyTorch's ``DataLoader``.

    It runs in the training process, so the loader may have any number of workers and read ahead.
    """

    def __init__(self, client: IndexShardingClient, batch_size: int | None = None) -> None:
        self._client = client
        self.batch_size = batch_size or client.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self._client.indices():
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch:
            yield batch
