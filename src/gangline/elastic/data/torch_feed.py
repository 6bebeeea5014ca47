"""The public import path of ``gangline.elastic.data.torch_records``."""

from gangline.elastic.data.torch_records import *  # noqa: F403
