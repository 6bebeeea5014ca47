"""The public import path of ``gangline.elastic.data.shard_sampler``."""

from gangline.elastic.data.shard_sampler import *  # noqa: F403
