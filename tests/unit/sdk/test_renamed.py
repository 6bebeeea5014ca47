"""Old public names of the SDK still work, and warn with the new name."""

import sys
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
    ("jobs", "describe", "build_job"),
    ("jobs", "status_word", "pod_status_text"),
    ("events", "happenings", "read_events"),
    ("functions", "function_job", "build_function_job"),
    ("logs", "Follower", "LogFollower"),
    ("logs", "following_logs", "follow_logs"),
    ("usage", "Usage", "ResourceUsage"),
    ("client", "kinds_called", "resolve_kinds"),
    ("kinds", "TrainingJob", "JobObject"),
    ("goodput", "goodput_of", "read_goodput"),
]
PATHS = [
    ("boards", "address_of", "addresses.tensorboard", "service_address"),
    ("changes", "Changes", "job_editor", "JobEditor"),
    ("checks", "Verdict", "cluster_checks.checks", "CheckStatus"),
    ("doctor", "examine", "cluster_checks.run", "check_cluster"),
    ("evidence", "diagnosed", "diagnosis.inputs", "diagnose_job"),
    ("gpu_usage", "GpuUsage", "usage", "GpuUsage"),
    ("line_queue", "LineQueue", "logs", "LineQueue"),
    ("listed", "LISTED_PODS", "lean_pods", "LISTED_PODS"),
    ("places", "find_place", "addresses.port_targets", "resolve_port_target"),
    ("symptoms", "find_symptom", "diagnosis.symptoms", "find_symptom"),
    ("waiting", "waiting_cause", "diagnosis.pending", "find_pending_cause"),
    ("written", "as_written", "manifests", "to_submittable"),
]


@pytest.mark.parametrize(("old_path", "old", "new_path", "new"), PATHS)
def test_old_module_path_imports_with_a_warning(
    old_path: str, old: str, new_path: str, new: str
) -> None:
    sys.modules.pop(f"gangline.sdk.{old_path}", None)
    with pytest.warns(DeprecationWarning, match=f"gangline.sdk.{new_path}"):
        module = import_module(f"gangline.sdk.{old_path}")
    assert getattr(module, old) is getattr(import_module(f"gangline.sdk.{new_path}"), new)


@pytest.mark.parametrize("name", ["Diagnosis", "Finding", "diagnose"])
def test_names_of_the_former_diagnosis_module_warn(name: str) -> None:
    package = import_module("gangline.sdk.diagnosis")
    with pytest.warns(DeprecationWarning, match=r"diagnosis\.diagnosis"):
        assert getattr(package, name).__name__ == name


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
