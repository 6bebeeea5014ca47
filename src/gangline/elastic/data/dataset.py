"""The public import path of ``gangline.elastic.data.shards.dataset``."""

from gangline.elastic.data.shards.dataset import *  # noqa: F403
