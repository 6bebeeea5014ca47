"""Data shards: records of data sets are leased to workers, so that each is trained on once.

``client`` is the API for training scripts, ``feed`` and ``torch_feed`` adapt it to input pipelines.
``gangline.elastic.shards`` is the ledger.
"""
