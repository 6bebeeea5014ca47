"""Two processes of different speed share eight shards of records; the slow one gets fewer."""

import os
import time

from gangline.elastic.data.client import IndexShardingClient

rank = int(os.environ["RANK"])
client = IndexShardingClient("numbers", batch_size=4, dataset_size=64, num_minibatches_per_shard=1)
records = 0
while shard := client.fetch_shard():
    time.sleep(0.4 if rank else 0.1)
    records += shard.end - shard.start
    client.report_batch_done(shard.end - shard.start)
print(f"rank {rank}: {records} records", flush=True)
