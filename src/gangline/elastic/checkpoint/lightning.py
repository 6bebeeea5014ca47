"""The public import path of ``gangline.elastic.checkpoint.integrations.lightning``."""

from gangline.elastic.checkpoint.integrations.lightning import *  # noqa: F403
