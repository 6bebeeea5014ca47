"""The public import path of ``gangline.elastic.shards.dataset``."""

from gangline.elastic.shards.dataset import *  # noqa: F403
