"""``submit`` prints warnings and submits."""

from pathlib import Path

import pytest

from gangline.cli import main
from gangline.cli.errors import ExitCode

JOB = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: digits}
spec:
  tfReplicaSpecs:
    Worker:
      restartPolicy: OnFailure
      template:
        spec:
          restartPolicy: Always
          containers: [{name: tensorflow, image: "tf:2"}]
"""


def test_a_restart_policy_in_two_places_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert main.run(["submit", "-f", str(file), "--dry-run"]) == ExitCode.DONE
    result = capsys.readouterr()
    assert "kind: TFJob" in result.out
    assert result.err.startswith(
        "Warning: TFJob 'digits': spec.tfReplicaSpecs.Worker.template.spec."
    )
    assert "'Always' is ignored" in result.err


def test_unambiguous_job_has_no_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("restartPolicy: Always", "priority: 0"))
    assert main.run(["submit", "-f", str(file), "--dry-run"]) == ExitCode.DONE
    assert capsys.readouterr().err == ""
