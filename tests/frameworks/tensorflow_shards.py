"""Reads two epochs of shards through ``tf.data`` and checks that all arrive; run by a test."""

import sys

sys.path.extend(sys.argv[1:])  # after TensorFlow's packages: numpy must be its own

from collections import Counter

import tensorflow as tf

from gangline.elastic.data.client import IndexShardingClient
from gangline.elastic.data.feed import report_batches


def main() -> None:
    """Compare the trained samples with the accounted ones, batch by batch."""
    client = IndexShardingClient(
        "numbers",
        batch_size=7,
        dataset_size=100,
        num_epochs=2,
        shuffle=True,
        num_minibatches_per_shard=2,
    )
    number = tf.TensorSpec((), tf.int64)
    numbers = tf.data.Dataset.from_generator(client.indices, output_signature=number)
    batches = numbers.map(lambda one: {"number": one, "square": one * one}).batch(7).prefetch(2)
    seen: list[int] = []
    for batch in report_batches(batches, client):
        state = client.state()
        assert state is not None
        assert len(seen) - 14 < state.done_records <= len(seen)
        seen += batch["number"].numpy().tolist()
    assert Counter(seen) == Counter(2 * list(range(100)))
    print("all records came twice")


if __name__ == "__main__":
    main()
