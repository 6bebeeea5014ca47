"""The public import path of ``gangline.elastic.checkpoint.integrations.deepspeed``."""

from gangline.elastic.checkpoint.integrations.deepspeed import *  # noqa: F403
