"""The public import path of ``gangline.elastic.data.shard_sampler``."""

from gangline.elastic.data.shard_sampler import *  # noqa: F403
from gangline.renamed import renamed

__getattr__ = renamed(__name__, {"accounted": "report_batches", "records_in": "batch_length"})
