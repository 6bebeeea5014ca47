"""The folder in which the pods of ``submit KIND`` run."""

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gangline.cli import main
from gangline.cli.errors import ExitCode
from gangline.kube.config.embedded import RunRecord, process_start_ticks
from gangline.sdk.missing_files import resubmission_sentence

Manifest = dict[str, Any]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kubeconfig of an embedded cluster that this process runs, in a directory of its own."""
    folder = tmp_path / "gangline/clusters/x"
    folder.mkdir(parents=True)
    start, since = process_start_ticks(os.getpid()), datetime.now(UTC)
    record = RunRecord(os.getpid(), start, "https://127.0.0.1:1", since)
    (folder / "run.json").write_bytes(msgspec.json.encode(record))
    named = {"name": "x", "cluster": {"server": record.url}, "user": {}}
    chosen = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    (folder / "kubeconfig").write_text(
        yaml.safe_dump(
            {"clusters": [named], "users": [named], "contexts": [chosen], "current-context": "x"}
        )
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    return folder / "kubeconfig"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder: the shell names it by a link, and its path has a space."""
    (tmp_path / "the code/sub").mkdir(parents=True)
    (tmp_path / "a link").symlink_to(tmp_path / "the code")
    monkeypatch.chdir(tmp_path / "a link")
    monkeypatch.setenv("PWD", str(tmp_path / "a link"))
    return tmp_path / "a link"


def submitted(
    capsys: pytest.CaptureFixture[str], *flags: str, kind: str = "pytorch"
) -> tuple[Manifest, list[Manifest]]:
    """Return the trainer's container and the volumes of the dry run of a job."""
    argv = ["submit", kind, "--name", "a", "--image", "any", *flags, "--dry-run", "python t.py"]
    assert main.run(argv) == ExitCode.DONE, capsys.readouterr().err
    spec = next(yaml.safe_load_all(capsys.readouterr().out))["spec"]
    if kind == "train":
        (change,) = spec["runtimePatches"]
        jobs = change["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = jobs[0]["template"]["spec"]["template"]["spec"]
        return spec["trainer"] | pod["containers"][0], pod["volumes"]
    pod = spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    return pod["containers"][0], pod["volumes"]


@pytest.mark.usefixtures("cluster")
def test_an_embedded_cluster_runs_the_job_in_the_present_folder(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    mounted = {"name": "working-folder", "mountPath": str(here)}
    source = {"path": str(here.resolve()), "type": "Directory"}
    container, volumes = submitted(capsys)
    assert container["workingDir"] == str(here)
    assert mounted in container["volumeMounts"]
    assert {"name": "working-folder", "hostPath": source} in volumes
    trainer, volumes = submitted(capsys, kind="train")
    assert trainer["command"][-1] == f"cd '{here}' || exit\npython t.py"
    assert mounted in trainer["volumeMounts"]
    assert {"name": "working-folder", "hostPath": source} in volumes


@pytest.mark.usefixtures("cluster", "here")
@pytest.mark.parametrize(
    ("flags", "expected", "is_mounted"),
    [
        pytest.param(["--working-dir", "sub"], "{here}/sub", True, id="relative"),
        pytest.param(["--working-dir", "/usr"], "/usr", False, id="pods see it anyway"),
        pytest.param(["--working-dir", "{here}"], "{here}", True, id="pods have their own /tmp"),
        pytest.param(["--working-dir", "/made/up"], "/made/up", False, id="of the container"),
        pytest.param(["--sync-mode", "git", "--sync-source", "u/r"], "/root", False, id="fetched"),
    ],
)
def test_working_folder_that_flags_choose(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    here: Path,
    flags: list[str],
    expected: str,
    is_mounted: bool,
) -> None:
    monkeypatch.setattr(
        "gangline.local.kubelet.runtime.paths.private_folders", lambda: (str(here.parent),)
    )
    container, volumes = submitted(capsys, *(flag.format(here=here) for flag in flags))
    assert container["workingDir"] == expected.format(here=here)
    assert any(volume["name"] == "working-folder" for volume in volumes) == is_mounted


@pytest.mark.usefixtures("here")
def test_a_cluster_elsewhere_keeps_the_folder_of_arena(
    capsys: pytest.CaptureFixture[str], cluster: Path
) -> None:
    # The same address, but no process of this machine serves it: the end of a tunnel.
    (cluster.parent / "run.json").unlink()
    container, volumes = submitted(capsys)
    assert container["workingDir"] == "/root"
    assert "working-folder" not in {volume["name"] for volume in volumes}
    argv = ["submit", "pytorch", "--name", "a", "--image", "any", "--working-dir", "sub", "run"]
    assert main.run(argv) == ExitCode.USAGE
    assert "--working-dir: 'sub': write an absolute path" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("flags", "logdir", "name", "path"),
    [
        pytest.param([], "/training_logs", "training-logs-volume",
                     "{cluster}/training-logs/training-a", id="a folder of the cluster"),
        pytest.param(["--logdir", "runs"], "{here}/runs", "working-folder", "{real}",
                     id="in the working folder"),
    ],
)  # fmt: skip
def test_tensorboard_reads_what_the_jobs_user_may_write(
    capsys: pytest.CaptureFixture[str],
    cluster: Path,
    here: Path,
    flags: list[str],
    logdir: str,
    name: str,
    path: str,
) -> None:
    argv = ["submit", "pytorch", "--name", "a", "--image", "any", "--tensorboard", *flags]
    assert main.run([*argv, "--dry-run", "run"]) == ExitCode.DONE
    _, _, deployment = yaml.safe_load_all(capsys.readouterr().out)
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][:3] == [
        "tensorboard",
        "--logdir",
        logdir.format(here=here),
    ]
    expected = path.format(cluster=cluster.parent, real=here.resolve())
    assert {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]} == {
        name: expected
    }


MISSING = "FileMissing (exit code 2): python: can't open file '/root/{}': No such file"


@pytest.mark.parametrize(
    ("typed", "missing", "command"),
    [
        pytest.param(["python sub/t.py"], "sub/t.py", "python sub/t.py", id="relative"),
        pytest.param(["python '{here}/sub/t.py'"], "t.py", "python 'sub/t.py'", id="absolute"),
        pytest.param(["--", "sub/t.py", "-x"], "t.py", "sub/t.py -x", id="behind --"),
        pytest.param(["python sub/t.py"], "data.bin", "", id="another file is missing"),
        pytest.param(["python none.py"], "none.py", "", id="no file of this folder"),
        pytest.param(["python 'sub/t.py"], "t.py", "", id="an open quote"),
    ],
)
def test_job_whose_file_stays_behind_knows_the_command_that_sends_it(
    capsys: pytest.CaptureFixture[str],
    cluster: Path,
    here: Path,
    typed: list[str],
    missing: str,
    command: str,
) -> None:
    (cluster.parent / "run.json").unlink()  # the cluster is elsewhere
    (here / "sub/t.py").touch()
    options = ["submit", "pytorch", "--name", "a", "--image", "any", "-n", "ns", "--dry-run"]
    words = [word.format(here=here) for word in typed]
    assert main.run([*options, *words]) == ExitCode.DONE
    made = next(yaml.safe_load_all(capsys.readouterr().out))
    notes = made["metadata"].get("annotations", {})
    sentence = resubmission_sentence(notes, MISSING.format(missing))
    again = [*options, "--sync-mode", "local", f"cd 'code/the code' && {command}"]
    expected = f"gangline delete a -n ns && {shlex.join(['gangline', *again])}"
    assert sentence.partition("along: ")[2] == (expected if command else "")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("runtime", "shares_folder", "noted"),
    [
        pytest.param("torch-distributed", False, True, id="it could be sent"),
        pytest.param("torch-distributed", True, False, id="it is there"),
        pytest.param("mlx-distributed", False, False, id="nodes of MPI could not get it"),
    ],
)
def test_train_job_whose_file_stays_behind_knows_it_too(
    capsys: pytest.CaptureFixture[str],
    cluster: Path,
    here: Path,
    runtime: str,
    shares_folder: bool,
    noted: bool,
) -> None:
    if not shares_folder:
        (cluster.parent / "run.json").unlink()
    (here / "t.py").touch()
    argv = ["submit", "train", "--name", "a", "--runtime", runtime, "--dry-run", "python t.py"]
    assert main.run(argv) == ExitCode.DONE
    made = yaml.safe_load(capsys.readouterr().out)
    notes = made["metadata"].get("annotations", {})
    assert bool(resubmission_sentence(notes, MISSING.format("t.py"))) == noted


@pytest.mark.usefixtures("cluster", "here")
def test_a_working_folder_that_does_not_exist_here_is_refused(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    argv = ["submit", "pytorch", "--name", "a", "--image", "any", "--working-dir", "no", "run"]
    assert main.run(argv) == ExitCode.USAGE
    assert f"there is no folder {here}/no that you may read" in capsys.readouterr().err
