"""The public import path of ``gangline.elastic.shards.events``."""

from gangline.elastic.shards.events import *  # noqa: F403
from gangline.renamed import renamed

__getattr__ = renamed(
    __name__,
    {
        "Register": "RegisterDataset",
        "Take": "TakeShards",
        "Failed": "ShardFailure",
        "Progress": "ShardProgress",
        "Report": "ShardReport",
        "Release": "ReleaseWorker",
        "Tick": "ExpireLeases",
        "Resume": "RenewLeases",
        "Extend": "ExtendStream",
        "Close": "CloseStream",
        "Revive": "RetryDeadLetters",
        "Restore": "RestorePosition",
        "Forget": "ForgetDataset",
        "Event": "LedgerEvent",
        "Taken": "TakenShards",
        "Accepted": "EventAccepted",
        "Refused": "EventRefused",
        "Answer": "LedgerAnswer",
        "Reason": "FailureReason",
        "Worker": "WorkerName",
    },
)
