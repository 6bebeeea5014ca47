"""The public import path of ``gangline.elastic.checkpoint.training_state``."""

from gangline.elastic.checkpoint.training_state import *  # noqa: F403
from gangline.renamed import renamed

__getattr__ = renamed(__name__, {"KeepsState": "Stateful", "OneValue": "SingleValueState"})
