"""The public import path of ``gangline.elastic.shards.events``."""

from gangline.elastic.shards.events import *  # noqa: F403
