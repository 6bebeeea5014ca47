"""``submit train``: a TrainJob that names a runtime and changes what its flags give."""

import base64
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gangline.api.jobs.train import TrainJob
from gangline.api.jobs.training_runtime import TrainingRuntimeSpec
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.api.trainer.effective import find_container
from gangline.api.trainer.policy import effective_job
from gangline.api.validation.effective_job import effective_job_errors
from gangline.api.validation.validate import check_manifest
from gangline.cli import main
from gangline.cli.errors import ExitCode
from gangline.cli.submit.preflight import RequiredObject, find_required_objects

Manifest = dict[str, Any]
RUNTIMES: dict[str, Manifest] = {each["metadata"]["name"]: each for each in builtin_runtimes()}
ALL_FLAGS = (
    "--image", "i:1", "--nodes", "3", "--nproc-per-node", "2", "--gpus", "4", "--cpu", "8",
    "--device", "example.com/link=1", "--rdma", "--env", "A=b", "--secret", "T=vault/token",
    "--data", "set:/data", "--data-dir", "/scratch", "--share-memory", "1Gi", "--label", "team=a",
    "--annotation", "note=b", "--selector", "zone=c", "--toleration", "spot", "--queue", "research",
    "--image-pull-secret", "registry", "--running-timeout", "2h", "--ttl-after-finished", "1m",
)  # fmt: skip


def built(capsys: pytest.CaptureFixture[str], *arguments: str) -> Manifest:
    given = ["submit", "train", "--name", "job", "--dry-run", *arguments]
    assert main.run(given) == ExitCode.DONE, capsys.readouterr().err
    job: Manifest = yaml.safe_load(capsys.readouterr().out)
    assert check_manifest(job).errors == []
    return job


def run_trainer(
    capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str
) -> tuple[str, list[Manifest]]:
    """Run the command of a job here, with its folders below one of the test: what it prints, and
    the objects of the job.
    """
    flags = ("--working-dir", f"{folder}/work", "--sync-source", str(folder / "digits"))
    given = ["submit", "train", "--name", "job", "--dry-run", *flags, *arguments]
    assert main.run(given) == ExitCode.DONE, capsys.readouterr().err
    job, *others = yaml.safe_load_all(capsys.readouterr().out)
    assert check_manifest(job).errors == []
    (folder / "work").mkdir()
    (folder / "work/code").symlink_to(folder / "code")
    for name in ("code", "uploaded"):
        (folder / name).mkdir()
    for part in others:
        [(name, content)] = part["binaryData"].items()
        (folder / "uploaded" / name).write_bytes(base64.b64decode(content))
    trainer = job["spec"]["trainer"]
    *shell, text = trainer["command"]
    for name in ("code", "uploaded"):
        text = text.replace(f" /{name}/", f" {folder}/{name}/").replace(
            f'"/{name}/', f'"{folder}/{name}/'
        )
    variables = {entry["name"]: entry["value"] for entry in trainer["env"]}
    done = subprocess.run(
        [*shell, text], env=os.environ | variables, check=True, capture_output=True, text=True
    )
    change = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    pod = change["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts.pop("/uploaded", "uploaded-code") == "uploaded-code"
    assert mounts == {f"{folder}/work/code": "code-sync", "/code": "code-sync"}
    return done.stdout, pod["volumes"]


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A repository with a script, and the folder that it is in."""
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "train.sh").write_text('echo "trains $LR in $PWD ${GIT_SYNC_REPO-} ${CODE_NAME-}"\n')
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", folder, *words], check=True)
    return tmp_path


@pytest.mark.parametrize("mode", ["git", "local"])
def test_command_fetches_its_code_and_leaves_no_variable_of_it(
    capsys: pytest.CaptureFixture[str], digits: Path, mode: str
) -> None:
    flags = ("--env", "LR=0.1", "--sync-mode", mode)
    printed, volumes = run_trainer(capsys, digits, *flags, "sh code/digits/train.sh")
    assert printed.endswith(f"trains 0.1 in {digits}/work  \n")
    assert {"name": "code-sync", "emptyDir": {}} in volumes


def test_code_that_cannot_be_fetched_ends_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_trainer(capsys, tmp_path, "--sync-mode", "git", "echo trains")
    assert "trains" not in failed.value.stdout
    assert "digits" in failed.value.stderr


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run(["submit", "train", "--name", "job", "--dry-run", *arguments]) == ExitCode.USAGE
    return capsys.readouterr().err


def test_a_job_without_flags_leaves_everything_to_its_runtime(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ref = {"kind": "ClusterTrainingRuntime", "name": "torch-distributed"}
    assert built(capsys)["spec"] == {"runtimeRef": ref}


def test_flags_reach_the_trainer_and_the_fields_of_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = built(capsys, *ALL_FLAGS, "torchrun", "train.py")
    trainer, annotations = job["spec"]["trainer"], job["metadata"]["annotations"]
    amounts = {"cpu": "8", "nvidia.com/gpu": 4, "example.com/link": "1", "rdma/hca": 1}
    assert trainer == {
        "image": "i:1",
        "command": ["sh", "-c", "torchrun train.py"],
        "env": [
            {"name": "A", "value": "b"},
            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "vault", "key": "token"}}},
        ],
        "numNodes": 3,
        "numProcPerNode": 2,
        "resourcesPerNode": {"requests": amounts, "limits": amounts},
    }
    assert job["spec"]["activeDeadlineSeconds"] == 7200
    assert annotations["scheduling.volcano.sh/queue-name"] == "research"
    assert annotations["gangline.dev/ttl-seconds-after-finished"] == "60"


@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
def test_flags_fit_every_shipped_runtime(capsys: pytest.CaptureFixture[str], runtime: str) -> None:
    written = built(capsys, "--runtime", runtime, *ALL_FLAGS, "train")
    job = msgspec.convert(written, TrainJob, strict=False)
    spec = msgspec.convert(RUNTIMES[runtime]["spec"], TrainingRuntimeSpec)
    merged = effective_job(job, spec)
    assert list(effective_job_errors(job, spec, merged)) == []
    for role in merged.training_roles:
        container, pod = find_container(role.template, "node"), role.template["spec"]
        assert container is not None
        mounts = {each["mountPath"] for each in container["volumeMounts"]}
        assert {"/data", "/scratch", "/dev/shm"} <= mounts
        assert container["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"]}
        assert pod["nodeSelector"] == {"zone": "c"}
        assert pod["tolerations"] == [{"key": "spot", "operator": "Exists"}]
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert role.template["metadata"]["labels"] == {"team": "a"}


def test_pod_flags_apply_to_the_replicated_jobs_that_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = ("--runtime", "ours", "--runtime-kind", "TrainingRuntime", "--selector", "zone=c")
    named = built(capsys, *own, "--runtime-job", "first", "--runtime-job", "second")
    patch = named["spec"]["runtimePatches"][0]
    assert patch["manager"] == "gangline.dev/submit"
    jobs = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert [each["name"] for each in jobs] == ["first", "second"]
    assert named["spec"]["runtimeRef"] == {"kind": "TrainingRuntime", "name": "ours"}


def test_range_of_nodes_makes_the_job_elastic(capsys: pytest.CaptureFixture[str]) -> None:
    job = built(capsys, "--nodes", "2", "--max-nodes", "4")
    assert job["spec"]["trainer"] == {
        "numNodes": 2,
        "elasticPolicy": {"minNodes": 1, "maxNodes": 4},
    }


def test_what_a_runtime_fetches_is_given_by_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    sources = ("--dataset-uri", "hf://a/b", "--model-uri", "s3://models/digits")
    job = built(capsys, *sources, "--initializer-secret", "keys")
    assert job["spec"]["initializer"] == {
        "dataset": {"storageUri": "hf://a/b", "secretRef": {"name": "keys"}},
        "model": {"storageUri": "s3://models/digits", "secretRef": {"name": "keys"}},
    }
    assert "--dataset-uri" in refused(capsys, "--initializer-secret", "keys")


@pytest.mark.parametrize(
    ("flags", "fragments"),
    [
        (("--runtime", "X_y"), ("spec.runtimeRef.name", "'X_y'")),
        (("--nodes", "0"), ("--nodes", "0")),
        (("--min-nodes", "2"), ("--min-nodes", "--max-nodes")),
        (("--nodes", "5", "--max-nodes", "4"), ("spec.trainer.numNodes", "give 1 to 4")),
        (("--nproc-per-node", "none"), ("--nproc-per-node", "'none'")),
        (("--dataset-uri", "data"), ("spec.initializer.dataset.storageUri", "hf://OWNER/NAME")),
        (("--runtime-kind", "Runtime"), ("--runtime-kind", "TrainingRuntime")),
        (("--sync-mode", "local"), ("--sync-mode", "add one")),
        (("--working-dir", "/data"), ("--working-dir", "add one")),
        (
            ("--runtime", "mlx-distributed", "--sync-mode", "local", "mpirun train"),
            ("--sync-mode", "--data"),
        ),
    ],
)
def test_wrong_flags_are_named(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], fragments: tuple[str, ...]
) -> None:
    message = refused(capsys, *flags)
    assert [each for each in fragments if each not in message] == [], message


def test_its_runtime_and_its_queue_must_exist(capsys: pytest.CaptureFixture[str]) -> None:
    shared = built(capsys, "--queue", "research", "--secret", "T=vault/token")
    own = built(capsys, "--runtime", "ours", "--runtime-kind", "TrainingRuntime", "--queue=default")
    assert find_required_objects([shared, own], "team") == {
        RequiredObject("ClusterTrainingRuntime", "torch-distributed"),
        RequiredObject("TrainingRuntime", "ours", "team"),
        RequiredObject("Queue", "research"),
        RequiredObject("Secret", "vault", "team"),
    }
