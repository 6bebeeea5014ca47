"""The table of job kinds: each entry has its modules, and no other module lists kinds."""

from pathlib import Path

import pytest

import gangline
from gangline.api.job_resources import JOB_KINDS, find_job_kind
from gangline.api.jobs.kind import JobKind
from gangline.api.validation.jobs import rules_of
from gangline.operator.main import all_frameworks
from gangline.operator.settings import OperatorSettings


@pytest.mark.parametrize("kind", JOB_KINDS, ids=lambda kind: kind.trainer)
def test_entry_has_rules_and_a_framework(kind: JobKind) -> None:
    frameworks = {
        framework.kind.entry: framework for framework in all_frameworks(OperatorSettings())
    }
    info = frameworks[kind].kind
    assert (info.kind, info.framework) == (kind.resource.kind, kind.module)
    assert info.controller == f"{kind.resource.kind.lower()}-controller"
    assert callable(rules_of(kind).validate)
    assert callable(rules_of(kind).list_warnings)


def test_no_two_kinds_have_one_identity_or_one_name_for_commands() -> None:
    assert len({kind.identity for kind in JOB_KINDS}) == len(JOB_KINDS)
    names = [name for kind in JOB_KINDS for name in kind.aliases]
    assert len(set(names)) == len(names)


def test_an_object_of_any_version_is_found_by_its_group() -> None:
    ours = find_job_kind("batch.paddlepaddle.org/v1", "PaddleJob")
    kubeflow = find_job_kind("kubeflow.org/v2", "PaddleJob")
    assert ours
    assert kubeflow
    assert (ours.identity, kubeflow.identity) == ("PaddleJob", "PaddleJob.kubeflow.org")
    assert find_job_kind("batch/v1", "Job") is None


def test_a_kind_is_named_only_in_its_modules_and_in_the_table() -> None:
    root = Path(gangline.__file__).parent
    # TrainJobs have runtimes for the same frameworks.
    own = {"api/jobs", "api/trainer", "api/validation/jobs", "operator/frameworks"}
    # A kind may have a ``submit`` command with flags of its own; it needs none to run.
    command = {"cli/commands/submit.py", "cli/submit/builders.py", "cli/submit/options.py"}
    naming = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "xgboost" in path.read_text().lower()
    }
    assert {name for name in naming if str(Path(name).parent) not in own} - command == {
        "api/job_resources.py"
    }
