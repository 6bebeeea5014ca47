"""Old public names of the SDK still work, and warn with the new name."""

from datetime import UTC, datetime
from importlib import import_module

import pytest

from gangline.sdk.jobs import Job, JobState
from gangline.sdk.kinds import JOB_KINDS

NAMES = [
    ("events", "Happening", "EventRecord"),
    ("functions", "Shape", "FunctionJobOptions"),
    ("functions", "NotShippable", "UnsupportedFunction"),
    ("jobs", "State", "JobState"),
    ("logs", "EVERYTHING", "ALL_LOGS"),
    ("session", "Jobs", "JobList"),
    ("session", "Progress", "ProgressCallback"),
    ("session", "Happenings", "EventList"),
]


@pytest.mark.parametrize(("module", "old", "new"), NAMES)
def test_old_name_is_new_object_and_warns(module: str, old: str, new: str) -> None:
    found = import_module(f"gangline.sdk.{module}")
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(found, old) is getattr(found, new)


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        _ = import_module("gangline.sdk.jobs").Nothing


def test_old_fields_of_a_job_warn() -> None:
    job = Job(JOB_KINDS[0], "j", "d", "u", JobState.PENDING, "", (), 3, 0, datetime.now(UTC))
    with pytest.warns(DeprecationWarning, match="desired"):
        assert job.wanted == 3
    with pytest.warns(DeprecationWarning, match="observed"):
        assert job.noticed is False
