"""Old public names of checkpoints and data shards work for one release, with a warning."""

from importlib import import_module

import pytest

RENAMED = {
    "gangline.elastic.checkpoint.checkpointer": {"Level": "SaveLevel"},
    "gangline.elastic.checkpoint.training": {
        "KeepsState": "Stateful",
        "OneValue": "SingleValueState",
    },
    "gangline.elastic.data.dataset": {
        "Definition": "DatasetDefinition",
        "Finite": "FiniteDataset",
        "Layout": "ShardLayout",
        "check": "check_definition",
        "records": "records_of",
    },
    "gangline.elastic.data.events": {
        "Accepted": "EventAccepted",
        "Answer": "LedgerAnswer",
        "Close": "CloseStream",
        "Event": "LedgerEvent",
        "Extend": "ExtendStream",
        "Failed": "ShardFailure",
        "Forget": "ForgetDataset",
        "Progress": "ShardProgress",
        "Reason": "FailureReason",
        "Refused": "EventRefused",
        "Register": "RegisterDataset",
        "Release": "ReleaseWorker",
        "Report": "ShardReport",
        "Restore": "RestorePosition",
        "Resume": "RenewLeases",
        "Revive": "RetryDeadLetters",
        "Take": "TakeShards",
        "Taken": "TakenShards",
        "Tick": "ExpireLeases",
        "Worker": "WorkerName",
    },
    "gangline.elastic.data.feed": {"accounted": "report_batches", "records_in": "batch_length"},
}


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [(module, old, new) for module, names in RENAMED.items() for old, new in names.items()],
)
def test_an_old_name_works_and_warns(module: str, old: str, new: str) -> None:
    loaded = import_module(module)
    with pytest.warns(DeprecationWarning, match=new) as caught:
        assert getattr(loaded, old) is getattr(loaded, new)
    assert caught[0].filename == __file__, "the warning points at the caller"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"data\.feed.*'nothing'"):
        _ = import_module("gangline.elastic.data.feed").nothing
