"""A training script that records its shards; rank 1 dies once."""

import os
import signal
import sys
from pathlib import Path

from gangline.elastic.data.client import IndexShardingClient
from gangline.elastic.data.feed import ShardBatchSampler, report_batches

RANK, ATTEMPT = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]

with Path(sys.argv[1], f"{RANK}-{ATTEMPT}").open("w") as seen:
    client = IndexShardingClient(
        "numbers", batch_size=4, dataset_size=400, num_minibatches_per_shard=2
    )
    for number, batch in enumerate(report_batches(ShardBatchSampler(client), client)):
        print(*batch, file=seen, flush=True)
        if number == 5 and ATTEMPT == "0":
            if RANK == "1":
                os._exit(9)
            signal.pause()  # holds a shard until the launcher restarts all workers
    client.close()
