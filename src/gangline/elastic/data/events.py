"""The public import path of ``gangline.elastic.data.shards.events``."""

from gangline.elastic.data.shards.events import *  # noqa: F403
