"""Data shards: records of data sets are leased to workers, so that each is trained on once.

``client`` is the API for training scripts, ``shard_sampler`` and ``torch_records`` adapt it to
input pipelines. ``gangline.elastic.shards`` is the ledger.
"""
