"""The public import path of ``gangline.elastic.checkpoint.training_state``."""

from gangline.elastic.checkpoint.training_state import *  # noqa: F403
