"""The public import path of ``gangline.elastic.checkpoint.integrations.dlrover``."""

from gangline.elastic.checkpoint.integrations.dlrover import *  # noqa: F403
