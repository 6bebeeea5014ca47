"""The public import path of ``gangline.elastic.checkpoint.integrations.huggingface``."""

from gangline.elastic.checkpoint.integrations.huggingface import *  # noqa: F403
