"""The public import path of ``gangline.elastic.shards.dataset``."""

from gangline.elastic.shards.dataset import *  # noqa: F403
from gangline.renamed import renamed

__getattr__ = renamed(
    __name__,
    {
        "Definition": "DatasetDefinition",
        "Finite": "FiniteDataset",
        "Layout": "ShardLayout",
        "check": "check_definition",
        "records": "records_of",
    },
)
