"""Why successful runs of a name do not count for a job that is not submitted yet."""

from typing import Any

import pytest

from brain_records import DAY_MS, NOW_MS, a_job
from gangline.brain.evaluation.advisers import why_not_counted
from gangline.brain.facts.records import Image

JOB = a_job(99, spec_digest="new")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"complete": False}, "not watched from start to end", id="incomplete"),
        pytest.param({"finished_ms": NOW_MS - 31 * DAY_MS}, "more than 30 days ago", id="old"),
        pytest.param({"kind": "PyTorchJob"}, "of the kind PyTorchJob", id="kind"),
        pytest.param(
            {"image": Image(repository="other/train"), "model": None}, "other/train", id="image"
        ),
        pytest.param({"owner": "bob"}, "another owner or command, where 3 are needed", id="owner"),
        pytest.param({}, "the same family, where 3 are needed", id="too few"),
    ],
)
def test_reason_is_named(changes: dict[str, Any], reason: str) -> None:
    past = [a_job(number, **changes) for number in (1, 2)]
    text = why_not_counted(JOB, past, NOW_MS)
    assert text.startswith("2 successful runs of train-resnet do not count: 2 ")
    assert reason in text


def test_nothing_is_said_of_a_name_without_runs() -> None:
    assert why_not_counted(JOB, [], NOW_MS) == ""
