"""Objects that ``submit KIND`` builds from Arena's flags: roles, images, ports, code, files."""

import base64
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.cli import main
from gangline.cli.errors import ExitCode
from gangline.cli.submit.code_sync import pack_code, repository_name
from gangline.cli.submit.preflight import RequiredObject, find_required_objects
from gangline.sdk.manifests import with_owner

Manifest = dict[str, Any]


def objects(capsys: pytest.CaptureFixture[str], kind: str, *flags: str) -> list[Manifest]:
    arguments = ["submit", kind, "--name", "job", "--image", "i:1", *flags]
    assert main.run([*arguments, "--dry-run", "run"]) == ExitCode.DONE, capsys.readouterr().err
    return list(yaml.safe_load_all(capsys.readouterr().out))


def job(capsys: pytest.CaptureFixture[str], kind: str, *flags: str) -> Manifest:
    return objects(capsys, kind, *flags)[0]


def counts(specs: Manifest) -> dict[str, int]:
    return {role: spec["replicas"] for role, spec in specs.items()}


def container(spec: Manifest) -> Manifest:
    found: Manifest = spec["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize(
    ("kind", "flags", "field", "expected"),
    [
        ("pytorch", ["--workers", "3"], "pytorchReplicaSpecs", {"Master": 1, "Worker": 2}),
        ("pytorchjob", [], "pytorchReplicaSpecs", {"Master": 1}),
        ("tf", ["--workers", "2", "--ps", "1"], "tfReplicaSpecs", {"PS": 1, "Worker": 2}),
        ("tf", [], "tfReplicaSpecs", {"Chief": 1}),
        ("tensorflow", ["--chief", "--evaluator"], "tfReplicaSpecs",
         {"Worker": 1, "Chief": 1, "Evaluator": 1}),
        ("mpi", ["--workers", "2"], "mpiReplicaSpecs", {"Launcher": 1, "Worker": 2}),
        ("hj", ["--workers", "2"], "mpiReplicaSpecs", {"Launcher": 1, "Worker": 2}),
        ("deepspeed", ["--workers", "2"], "mpiReplicaSpecs", {"Launcher": 1, "Worker": 2}),
        ("dp", [], "mpiReplicaSpecs", {"Launcher": 1}),
        ("mindspore", ["--workers", "2"], "msReplicaSpecs", {"Scheduler": 1, "Worker": 2}),
        ("ms", [], "msReplicaSpecs", {"Worker": 1}),
        ("jax", ["--workers", "2"], "jaxReplicaSpecs", {"Worker": 2}),
        ("xgboost", ["--workers", "3"], "xgbReplicaSpecs", {"Master": 1, "Worker": 2}),
        ("xgb", [], "xgbReplicaSpecs", {"Master": 1}),
        ("et", ["--workers", "2", "--ps", "1"], "replicaSpecs", {"worker": 2, "ps": 1}),
    ],
)  # fmt: skip
def test_each_kind_has_its_roles(
    kind: str,
    flags: list[str],
    field: str,
    expected: dict[str, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert counts(job(capsys, kind, *flags)["spec"][field]) == expected


def test_a_paddle_job_has_its_roles_beside_its_policy(capsys: pytest.CaptureFixture[str]) -> None:
    spec = job(capsys, "paddle", "--workers", "2", "--ps", "1", "--queue", "q")["spec"]
    assert (spec["worker"]["replicas"], spec["ps"]["replicas"]) == (2, 1)
    assert (spec["cleanPodPolicy"], spec["schedulingPolicy"]) == ("OnCompletion", {"queue": "q"})


def test_a_tensorflow_job_takes_what_each_role_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = job(
        capsys, "tf", "--workers", "2", "--ps", "1", "--gpus", "1", "--worker-image", "w:1",
        "--psImage", "p:1", "--worker-cpu", "2", "--worker-cpu-limit", "4", "--ps-memory", "1Gi",
        "--worker-selector", "zone=a", "--ps-port", "3333", "--worker-affinity-policy", "spread",
        "--success-policy", "AllWorkers", "--role-sequence", "w,p", "--starting-timeout", "5m",
    )  # fmt: skip
    assert made["metadata"]["annotations"]["job-role-sequence"] == "w,p"
    spec = made["spec"]
    assert spec["successPolicy"] == "AllWorkers"
    assert spec["runPolicy"]["schedulingPolicy"] == {"scheduleTimeoutSeconds": 300}
    server, worker = spec["tfReplicaSpecs"]["PS"], spec["tfReplicaSpecs"]["Worker"]
    assert container(server)["image"] == "p:1"
    assert container(server)["ports"] == [{"name": "tfjob-port", "containerPort": 3333}]
    assert container(server)["resources"]["requests"] == {"memory": "1Gi"}
    assert container(worker)["image"] == "w:1"
    assert container(worker)["resources"] == {
        "requests": {"cpu": "2", "nvidia.com/gpu": 1},
        "limits": {"cpu": "4", "nvidia.com/gpu": 1},
    }
    assert worker["template"]["spec"]["nodeSelector"] == {"zone": "a"}
    assert "podAntiAffinity" in worker["template"]["spec"]["affinity"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container(server)["env"]


def test_deepspeed_job_has_a_launcher_with_the_host_file_where_deepspeed_reads_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--workers", "2", "--gpus", "4", "--data", "set:/data", "--retry", "3")
    own = (
        "--launcher-selector",
        "a=b",
        "--launcher-annotation",
        "c=d",
        "--worker-annotation",
        "e=f",
    )
    found = job(capsys, "deepspeedjob", *flags, *own)
    spec = found["spec"]
    launcher, worker = spec["mpiReplicaSpecs"]["Launcher"], spec["mpiReplicaSpecs"]["Worker"]
    assert (found["apiVersion"], found["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert (spec["slotsPerWorker"], spec["runPolicy"]["backoffLimit"]) == (4, 3)
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady"
    assert container(launcher)["command"] == ["sh", "-c", "run"]
    assert "resources" not in container(launcher)
    mounts = {mount["name"]: mount["mountPath"] for mount in container(launcher)["volumeMounts"]}
    assert (mounts["hosts"], "/data" in mounts.values()) == ("/job", True)
    volumes = {each["name"]: each for each in launcher["template"]["spec"]["volumes"]}
    assert volumes["hosts"]["configMap"]["name"] == "job-config"
    assert launcher["template"]["spec"]["nodeSelector"] == {"a": "b"}
    assert launcher["template"]["metadata"]["annotations"]["c"] == "d"
    # The operator starts an SSH server in a worker without a command.
    assert "command" not in container(worker)
    assert container(worker)["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert container(worker)["readinessProbe"]["tcpSocket"] == {"port": 22}
    assert worker["template"]["metadata"]["annotations"]["e"] == "f"
    assert (launcher["restartPolicy"], worker["restartPolicy"]) == ("OnFailure", "Never")
    assert not [each for each in find_required_objects([found], "d") if each.kind == "ConfigMap"]


def test_deepspeed_job_of_one_worker_trains_in_its_launcher(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = job(capsys, "deepspeed", "--gpus", "2")["spec"]
    launcher = spec["mpiReplicaSpecs"]["Launcher"]
    assert spec["runLauncherAsWorker"]
    assert container(launcher)["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert "/job" not in [mount["mountPath"] for mount in container(launcher)["volumeMounts"]]


def test_the_command_of_an_mpi_job_runs_in_its_launcher_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = job(capsys, "mpi", "--gpus", "2", "--data", "set:/data")["spec"]
    launcher, worker = spec["mpiReplicaSpecs"]["Launcher"], spec["mpiReplicaSpecs"]["Worker"]
    assert spec["slotsPerWorker"] == 2
    assert spec["runPolicy"]["cleanPodPolicy"] == "All"
    assert container(launcher)["command"] == ["sh", "-c", "run"]
    assert "resources" not in container(launcher)
    assert "command" not in container(worker)
    assert container(worker)["volumeMounts"][0]["mountPath"] == "/data"


def test_bounds_of_an_elastic_job_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    made = job(capsys, "elastic", "--workers", "4", "--min-workers", "2", "--max-workers", "8")
    assert made["metadata"]["annotations"]["gangline.dev/nodes"] == "2:8"
    assert made["spec"]["distributionStrategy"] == "AllreduceStrategy"


GIT = ("--sync-mode", "git", "--sync-source")


def test_passwords_go_into_a_secret_and_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    made = objects(
        capsys, "pytorch", *GIT, "https://me:s3cret@host/team/code.git", "-e", "A=1",
        "-e", "GIT_SYNC_BRANCH=dev",
    )  # fmt: skip
    assert "s3cret" not in json.dumps(made)
    secret = next(each for each in made if each["kind"] == "Secret")
    assert base64.b64decode(secret["data"]["GIT_SYNC_PASSWORD"]) == b"s3cret"
    pod = made[0]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    main_names = {each["name"] for each in pod["containers"][0]["env"]}
    assert "A" in main_names
    assert not any(name.startswith("GIT_SYNC") for name in main_names)
    init = {each["name"]: each for each in pod["initContainers"][0]["env"]}
    assert init["GIT_SYNC_REPO"]["value"] == "https://host/team/code.git"
    assert init["GIT_SYNC_BRANCH"]["value"] == "dev"
    assert init["GIT_SYNC_PASSWORD"]["valueFrom"]["secretKeyRef"]["name"] == "job-code-sync"
    assert {"name": "code-sync", "mountPath": "/root/code"} in pod["containers"][0]["volumeMounts"]


def test_passwords_given_as_variables_are_secret_too(capsys: pytest.CaptureFixture[str]) -> None:
    variables = ("-e", "GIT_SYNC_USERNAME=me", "--env=GIT_SYNC_PASSWORD=s3cret")
    made = objects(capsys, "pytorch", "--syncMode=git", "--syncSource=https://h/c.git", *variables)
    assert "s3cret" not in json.dumps(made)


@pytest.mark.parametrize(
    "source", ["https://h/a/code.git", "git@h:a/code.git", "https://h/code/", "/srv/code.git"]
)
def test_a_clone_is_named_after_its_repository(source: str) -> None:
    assert repository_name(source) == "code"


def test_local_folder_is_packed_without_ignored_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)")
    (folder / "data" / "big").write_text("x")
    (folder / ".ganglineignore").write_text("# not these\n/data\n")
    made = objects(capsys, "pytorch", "--sync-mode", "local", "--sync-source", str(folder))
    upload = made[1]
    packed = base64.b64decode(upload["binaryData"]["part-000"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == [".ganglineignore", "train.py"]
    assert (
        made[0]["metadata"]["annotations"]["gangline.dev/code-sha256"] == pack_code(folder).sha256
    )
    assert upload["metadata"]["annotations"]["gangline.dev/belongs-to"] == "job"


def test_local_folder_is_packed_as_by_rsync_and_bad_links_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "work"
    (folder / "lib" / "empty").mkdir(parents=True)
    (folder / "lib" / "run.sh").write_text("true")
    (folder / "lib" / "run.sh").chmod(0o750)
    os.utime(folder / "lib" / "run.sh", (1_000_000_000, 1_000_000_000))
    (folder / "copy").symlink_to(folder / "lib")
    (folder / "file").symlink_to("lib/run.sh")
    (folder / "out").symlink_to(tmp_path)
    (folder / "nowhere").symlink_to("missing")
    (folder / "self").symlink_to("self")
    (folder / "lib" / "up").symlink_to("..")
    made = objects(capsys, "pytorch", "--sync-mode", "local", "--sync-source", str(folder))
    packed = base64.b64decode(made[1]["binaryData"]["part-000"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = {entry.name: entry for entry in archive.getmembers()}
    names = ["copy", "copy/empty", "copy/run.sh", "file", "lib", "lib/empty", "lib/run.sh", "out"]
    assert sorted(members) == names
    assert members["out"].linkname == str(tmp_path)
    for name in ("copy/run.sh", "file", "lib/run.sh"):
        assert members[name].isfile()
        assert (members[name].mode, members[name].mtime) == (0o750, 1_000_000_000)
    packed_code = pack_code(folder)
    assert packed_code.skipped == [
        "copy/up -> .. leads in a circle",
        "lib/up -> .. leads in a circle",
        "nowhere -> missing leads nowhere",
        "self -> self leads in a circle",
    ]
    os.utime(folder / "lib" / "run.sh")
    assert pack_code(folder).sha256 == packed_code.sha256


def test_too_large_folder_is_refused_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.cli.submit.code_sync.MAX_BYTES", 10)
    (tmp_path / "a").write_text("content")
    flags = ["--name", "x", "--image", "i", "--sync-mode=local", f"--sync-source={tmp_path}"]
    assert main.run(["submit", "jax", *flags, "--dry-run", "run"]) == ExitCode.USAGE
    assert ".ganglineignore" in capsys.readouterr().err


def test_tensorboard_reads_events_from_the_claim(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--data", "set:/data", "--tensorboard", "--logdir=/data/logs")
    _, service, deployment = objects(capsys, "pytorch", *flags, "--tensorboard-image", "tb:1")
    assert service["metadata"]["name"] == deployment["metadata"]["name"] == "job-tensorboard"
    assert service["spec"]["ports"][0]["port"] == 6006
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][:3] == ["tensorboard", "--logdir", "/data/logs"]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "set"}
    assert "affinity" not in pod


def test_tensorboard_shares_a_folder_of_the_node_else(capsys: pytest.CaptureFixture[str]) -> None:
    made, _, deployment = objects(capsys, "tf", "--tensorboard")
    chief = made["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]
    mounts = {each["name"]: each["mountPath"] for each in chief["containers"][0]["volumeMounts"]}
    assert mounts["training-logs-volume"] == "/training_logs"
    assert "podAffinity" in deployment["spec"]["template"]["spec"]["affinity"]


def test_files_come_along_in_a_config_map(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.json"
    file.write_text("{}")
    made, configuration = objects(capsys, "jax", "--config-file", f"{file}:/etc/app/c.json")
    assert configuration["data"] == {"c.json": "{}"}
    worker = made["spec"]["jaxReplicaSpecs"]["Worker"]
    assert container(worker)["volumeMounts"][0]["mountPath"] == "/etc/app"


def test_host_and_device_flags_reach_the_pod(capsys: pytest.CaptureFixture[str]) -> None:
    made = job(
        capsys, "pytorch", "--hostNetwork=true", "--hostIPC", "--hostPID=false", "--rdma",
        "--gang", "--secret", "TOKEN=vault/token", "-l", "team=a", "--gpus=0", "--workers=2",
    )  # fmt: skip
    template = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    pod = template["spec"]
    assert (pod["hostNetwork"], pod["hostIPC"]) == (True, True)
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert "hostPID" not in pod
    assert pod["containers"][0]["resources"]["limits"] == {"rdma/hca": 1}
    assert pod["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    secret = {"secretKeyRef": {"name": "vault", "key": "token"}}
    assert {"name": "TOKEN", "valueFrom": secret} in pod["containers"][0]["env"]
    labels = template["metadata"]["labels"]
    assert labels["pod-group.scheduling.sigs.k8s.io/min-available"] == "2"
    assert (labels["app"], labels["release"], labels["team"]) == ("pytorchjob", "job", "a")


def test_old_spellings_are_taken_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["submit", "pytorch", "--name=x", "--image=i", "--workingDir=/w", "--dry-run"]
    assert main.run([*arguments, "python x.py --workingDir=/y"]) == ExitCode.DONE
    result = capsys.readouterr()
    assert "workingDir: /w" in result.out
    assert "python x.py --workingDir=/y" in result.out
    assert result.err == "Note: --workingDir is deprecated; write --working-dir.\n"


def test_what_a_dry_run_prints_can_be_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = objects(capsys, "pytorch", "--tensorboard", *GIT, "https://u:p@h/c.git")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all(made))
    assert main.run(["submit", "-f", str(file), "--dry-run"]) == ExitCode.DONE
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == made


def test_fields_are_set_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = objects(capsys, "pytorch", "--workers", "2")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all(made))
    worker = "spec.pytorchReplicaSpecs.Worker"
    changes = [
        f"--set={worker}.replicas=5",
        f"--set={worker}.template.spec.containers[0].image=j:2",
        r"--set=metadata.annotations.a\.b/c=text",
    ]
    assert main.run(["submit", "-f", str(file), *changes, "--dry-run"]) == ExitCode.DONE
    changed = yaml.safe_load(capsys.readouterr().out)
    spec = changed["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert (spec["replicas"], container(spec)["image"]) == (5, "j:2")
    assert changed["metadata"]["annotations"]["a.b/c"] == "text"
    for wrong in ("novalue", "=1", "spec.a[0].b=1", "spec.runPolicy[0]=1", "a..b=1", "a=[1"):
        assert main.run(["submit", "-f", str(file), "--set", wrong, "--dry-run"]) == ExitCode.USAGE
        assert "--set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "fragment"),
    [
        (["--sync-mode", "git"], "--sync-source"),
        (["--sync-source", "x"], "--sync-mode"),
        (["--sync-mode", "hdfs"], "'git'"),
        (["--model-name", "m"], "--model-source"),
        (["--secret", "A=b"], "VARIABLE=SECRET/KEY"),
        (["--config-file", "/nowhere/x"], "No such file"),
        (["--worker-cpu", "x"], "--worker-cpu"),
        (["--worker-affinity-policy", "apart"], "spread"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_in_further_flags_name_the_remedy(
    flags: list[str], fragment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["submit", "tf", "--name", "x", "--image", "i", *flags, "--dry-run", "run"]
    assert main.run(arguments) == ExitCode.USAGE
    assert fragment in capsys.readouterr().err


def test_references_that_are_not_included_are_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = objects(
        capsys, "pytorch", "--data", "set:/d", "--queue", "q", "-p", "high",
        "--image-pull-secret", "pull", "--secret", "A=vault/k", *GIT, "https://u:p@h/c.git",
    )  # fmt: skip
    assert find_required_objects(made, "team") == {
        RequiredObject("PersistentVolumeClaim", "set", "team"),
        RequiredObject("Queue", "q"),
        RequiredObject("PriorityClass", "high"),
        RequiredObject("Secret", "pull", "team"),
        RequiredObject("Secret", "vault", "team"),
    }


def test_what_belongs_to_a_job_names_it_as_owner() -> None:
    owner = {"apiVersion": "v1", "kind": "K", "metadata": {"name": "job", "uid": "u"}}
    made = with_owner({"metadata": {"name": "job-tensorboard"}}, owner)
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "K", "name": "job", "uid": "u"}
    ]
