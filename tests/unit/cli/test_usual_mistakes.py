"""Common errors of users: exit status and advice of each."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gangline.cli import main
from gangline.cli.errors import ExitCode
from unit.cli.fake_api import FakeApi

KUBEFLOW = "/apis/kubeflow.org/v1/namespaces/default"
TEAM = "/api/v1/namespaces/default"
OWNER = {"apiVersion": "kubeflow.org/v1", "controller": True}
SUBMIT = ("submit", "pytorch", "--name", "digits", "--image", "i")


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a command."""

    code: int
    out: str
    err: str


Typed = Callable[..., Awaitable[CommandResult]]


@pytest.fixture
def typed(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> Typed:
    async def type_in(*args: str) -> CommandResult:
        code = await asyncio.to_thread(main.run, list(args))
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return type_in


def add_job(api: FakeApi, name: str, kind: str = "PyTorchJob", role: str = "Master") -> None:
    specs = {"PyTorchJob": "pytorchReplicaSpecs", "TFJob": "tfReplicaSpecs"}[kind]
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {specs: {role: {"replicas": 1, "template": template}}}
    api.add(
        f"{KUBEFLOW}/{kind.lower()}s/{name}", apiVersion=OWNER["apiVersion"], kind=kind, spec=spec
    )


def add_pod(api: FakeApi, job: str, waiting: str = "") -> None:
    labels = {
        "training.kubeflow.org/job-name": job,
        "training.kubeflow.org/replica-type": "master",
        "training.kubeflow.org/replica-index": "0",
    }
    owner = OWNER | {"kind": "PyTorchJob", "name": job, "uid": f"{KUBEFLOW}/pytorchjobs/{job}"}
    state: dict[str, Any] = {"waiting": {"reason": waiting, "message": "no such image"}}
    status = {"name": "c", "state": state if waiting else {"running": {}}}
    api.add(
        f"{TEAM}/pods/{job}-master-0",
        metadata={"labels": labels, "ownerReferences": [owner]},
        spec={"containers": [{"name": "c"}], "nodeName": "n"},
        status={"phase": "Pending" if waiting else "Running", "containerStatuses": [status]},
    )


@pytest.mark.parametrize(
    "args",
    [
        ("get", "none"), ("describe", "none"), ("logs", "none"), ("logs", "-f", "none"),
        ("top", "job", "none"), ("attach", "none"), ("exec", "none", "--", "true"),
        ("port-forward", "none", "80"), ("tensorboard", "none"), ("diagnose", "none"),
        ("explain", "none"), ("wait", "none"), ("delete", "none"), ("suspend", "none"),
        ("resume", "none"), ("scale", "none", "2"), ("scalein", "none"), ("restart", "none"),
        ("clone", "none", "copy"), ("get", "none", "--spec"),
    ],
    ids=" ".join,
)  # fmt: skip
async def test_missing_job_is_reported_with_the_nearest_name(
    api: FakeApi, typed: Typed, args: tuple[str, ...]
) -> None:
    add_job(api, "nones")
    result = await typed(*args)
    assert result.code == ExitCode.NOT_FOUND, result
    assert "'none'" in result.err
    assert "'default'" in result.err
    assert "Did you mean 'nones'?" in result.err
    assert "gangline list -A" in result.err
    assert not result.out


@pytest.mark.parametrize(
    ("args", "plural"),
    [
        (("top", "node", "gpu-nod-1"), "nodes"),
        (("queue", "get", "gpu-nod-1"), "queues"),
        (("queue", "close", "gpu-nod-1"), "queues"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
async def test_missing_node_or_queue_is_reported_with_the_nearest_name(
    api: FakeApi, typed: Typed, args: tuple[str, ...], plural: str
) -> None:
    group = "/api/v1" if plural == "nodes" else "/apis/scheduling.volcano.sh/v1beta1"
    api.add(f"{group}/{plural}/gpu-node-1", status={})
    result = await typed(*args)
    assert result.code == ExitCode.NOT_FOUND, result
    assert "Did you mean 'gpu-node-1'?" in result.err


@pytest.mark.parametrize(
    ("args", "meant"),
    [(("list", "--al-namespaces"), "--all-namespaces"), (("queue", "lst"), "list")],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
async def test_misspelt_option_or_subcommand_is_reported_with_the_nearest(
    typed: Typed, args: tuple[str, ...], meant: str
) -> None:
    result = await typed(*args)
    assert result.code == ExitCode.USAGE, result
    assert meant in result.err


async def test_a_job_that_is_there_already_is_not_touched(api: FakeApi, typed: Typed) -> None:
    add_job(api, "digits")
    result = await typed(*SUBMIT, "true")
    assert result.code == ExitCode.EXISTS
    assert "'digits' already exists" in result.err
    assert "gangline delete" in result.err
    assert f"{KUBEFLOW}/pytorchjobs/digits" in api.objects


async def test_a_leftover_config_map_takes_the_new_job_away_again(
    api: FakeApi, typed: Typed, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("a: 1")
    args = (*SUBMIT, "--config-file", f"{settings}:/etc/train/settings.yaml", "true")
    assert (await typed(*args)).code == ExitCode.DONE
    del api.objects[f"{KUBEFLOW}/pytorchjobs/digits"]
    left = [path for path in api.objects if "/configmaps/" in path]
    assert left
    result = await typed(*args)
    assert result.code == ExitCode.EXISTS
    assert "already exists" in result.err
    assert "digits deleted" in result.err
    assert list(api.objects) == left


@pytest.mark.parametrize("args", [("get",), ("logs",), ("delete",), ("top", "job"), ("suspend",)])
async def test_name_of_two_kinds_requires_type(
    api: FakeApi, typed: Typed, args: tuple[str, ...]
) -> None:
    add_job(api, "digits")
    add_job(api, "digits", "TFJob", "Worker")
    result = await typed(*args, "digits")
    assert result.code == ExitCode.USAGE
    assert "pytorchjob" in result.err
    assert "tfjob" in result.err
    assert "-T" in result.err
    assert len(api.objects) == 2


async def test_a_name_of_two_kinds_is_found_by_its_kind(api: FakeApi, typed: Typed) -> None:
    add_job(api, "digits")
    add_job(api, "digits", "TFJob", "Worker")
    for args in (("get", "-T", "TF", "digits"), ("get", "tfjob/digits")):
        assert (await typed(*args, "-o", "name")).out == "tfjob/digits\n"
    assert (await typed("delete", "-T", "pytorch", "digits")).code == ExitCode.DONE
    assert [path.split("/")[-2] for path in api.objects] == ["tfjobs"]


@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (("list", "-o", "xml"), ("'xml'", "json", "yaml", "wide")),
        (("get", "x", "-o", "csv"), ("'csv'", "json")),
        (("top", "job", "-o", "csv"), ("'csv'", "json")),
        (("prune",), ("--since", "7d")),
        (("prune", "--since", "soon"), ("--since", "'soon'", "1h30m")),
        (("logs", "digits", "-i", "worker-9"), ("--instance", "'worker-9'", "master-0")),
        (("exec", "digits", "-i", "worker-9", "--", "true"), ("'worker-9'", "master-0")),
        (("logs", "digits", "--rank", "5"), ("--rank", "'5'", "0 to 0")),
        (("logs", "digits", "--grep", "("), ("--grep", "'('")),
        (("logs", "digits", "--since", "x"), ("--since", "'x'", "10m")),
        (("logs", "digits", "-t", "many"), ("--tail", "'many'")),
    ],
    ids=lambda value: " ".join(value) if value[0].isalpha() else None,
)
async def test_a_wrong_word_is_named_with_the_right_ones(
    api: FakeApi, typed: Typed, args: tuple[str, ...], fragment: tuple[str, ...]
) -> None:
    add_job(api, "digits")
    add_pod(api, "digits")
    result = await typed(*args)
    assert result.code == ExitCode.USAGE, result
    assert [part for part in fragment if part not in result.err] == [], result.err
    assert not result.out
    assert not api.written


@pytest.mark.parametrize(
    "args",
    [
        ("list",), ("get", "x"), ("describe", "x"), ("logs", "x"), ("top", "job"), ("attach", "x"),
        ("exec", "x", "--", "true"), ("tensorboard", "x"), ("diagnose", "x"), ("wait", "x"),
        ("delete", "x"), ("port-forward", "x", "80"),
    ],
    ids=" ".join,
)  # fmt: skip
async def test_unknown_kind_lists_all_kinds(typed: Typed, args: tuple[str, ...]) -> None:
    at = 2 if args[0] == "top" else 1  # later arguments may belong to the command that is run
    result = await typed(*args[:at], "-T", "keras", *args[at:])
    assert result.code == ExitCode.USAGE, result
    assert "'keras'" in result.err
    assert "pytorchjob" in result.err


KINDS = ("pytorch", "tf", "mpi", "et", "jax", "xgboost", "ms", "paddle", "horovod", "elastic")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (("--image", "i", "true"), ("--name",)),
        (("--name", "x", "true"), ("--image",)),
        (("--name", "x", "--image", "i"), ("no command", "python train.py")),
        (("--name", "X_y", "--image", "i", "true"), ("'X_y'", "x-y")),
        (("--name", "x", "--image", "i", "--workers", "0", "true"), ("--workers", "0")),
        (("--name", "x", "--image", "i", "--gpus", "-1", "true"), ("--gpus", "-1")),
        (("--name", "x", "--image", "i", "--gpus", "two", "true"), ("--gpus", "'two'")),
    ],
    ids=[
        "no name",
        "no image",
        "no command",
        "name",
        "no workers",
        "gpus below 0",
        "gpus as text",
    ],
)
async def test_every_kind_reports_missing_and_wrong_arguments(
    api: FakeApi, typed: Typed, kind: str, args: tuple[str, ...], fragment: tuple[str, ...]
) -> None:
    result = await typed("submit", kind, *args)
    assert result.code == ExitCode.USAGE, result
    assert [part for part in fragment if part not in result.err] == [], result.err
    assert not api.written


NAMED = (
    "--data", "pictures:/data", "--priority", "urgent", "--queue", "research",
    "--secret", "TOKEN=vault/token", "--image-pull-secret", "registry",
)  # fmt: skip
MISSING = ("PersistentVolumeClaim 'pictures'", "PriorityClass 'urgent'", "Queue 'research'",
           "Secret 'vault'", "Secret 'registry'")  # fmt: skip


async def test_missing_references_are_reported_before_submission(
    api: FakeApi, typed: Typed
) -> None:
    result = await typed(*SUBMIT, *NAMED, "true")
    assert result.code == ExitCode.NOT_FOUND
    assert [each for each in MISSING if f"there is no {each}" not in result.err] == []
    for remedy in ("gangline data list", "kubectl get priorityclasses", "gangline queue list",
                   "kubectl create secret generic vault", "--no-check"):  # fmt: skip
        assert remedy in result.err
    assert not api.written
    assert (await typed(*SUBMIT, *NAMED, "--no-check", "true")).code == ExitCode.DONE
    assert api.written == [f"POST {KUBEFLOW}/pytorchjobs"]


async def test_unreadable_references_do_not_block_submission(api: FakeApi, typed: Typed) -> None:
    api.forbidden = {"persistentvolumeclaims", "priorityclasses", "queues", "secrets"}
    assert (await typed(*SUBMIT, *NAMED, "true")).code == ExitCode.DONE


async def test_unknown_kind_error_names_the_file_of_its_definition(
    api: FakeApi, typed: Typed
) -> None:
    api.absent = {"pytorchjobs", "tfjobs", "podgroups"}
    result = await typed(*SUBMIT, "true")
    assert result.code == ExitCode.USAGE
    assert "'PyTorchJob'" in result.err
    assert "deploy/crds" in result.err
    result = await typed("list", "-o", "json")
    assert (result.code, json.loads(result.out)) == (ExitCode.DONE, [])


async def test_missing_namespace_is_reported_with_command(api: FakeApi, typed: Typed) -> None:
    result = await typed(*SUBMIT, "-n", "nowhere", "true")
    assert result.code == ExitCode.NOT_FOUND
    assert "'nowhere'" in result.err
    assert "kubectl create namespace nowhere" in result.err


async def test_a_replica_that_has_not_begun_is_no_mistake(api: FakeApi, typed: Typed) -> None:
    add_job(api, "digits")
    add_pod(api, "digits", waiting="ImagePullBackOff")
    result = await typed("logs", "digits")
    assert result.code == ExitCode.DONE
    assert not result.out
    assert "No lines yet" in result.err
    assert "ImagePullBackOff no such image" in result.err


async def test_unreadable_kinds_are_skipped_and_reported(api: FakeApi, typed: Typed) -> None:
    add_job(api, "digits")
    add_pod(api, "digits")
    api.forbidden = {"tfjobs", "mpijobs", "podgroups", "pods"}
    result = await typed("list", "-o", "name")
    assert (result.code, result.out) == (ExitCode.DONE, "pytorchjob/digits\n")
    assert "mpijobs, podgroups, pods, tfjobs" in result.err
    result = await typed("get", "digits")
    assert result.code == ExitCode.DONE
    assert "podgroups, pods" in result.err
    assert (await typed("delete", "digits")).code == ExitCode.DONE


async def test_user_without_any_readable_kind_is_refused(api: FakeApi, typed: Typed) -> None:
    add_job(api, "digits")
    api.forbidden = {
        "pytorchjobs", "tfjobs", "mpijobs", "xgboostjobs", "jaxjobs", "paddlejobs", "msjobs",
        "elasticjobs", "trainjobs",
    }  # fmt: skip
    for args in (("list",), ("get", "digits"), ("delete", "digits"), (*SUBMIT, "true")):
        result = await typed(*args)
        assert result.code == ExitCode.UNEXPECTED, (args, result)
        assert "forbidden" in result.err
        assert "kubectl auth can-i" in result.err
        assert not result.out


async def test_missing_job_in_unreadable_kind_is_forbidden(api: FakeApi, typed: Typed) -> None:
    api.forbidden = {"tfjobs"}
    result = await typed("get", "digits")
    assert result.code == ExitCode.UNEXPECTED
    assert "tfjobs is forbidden" in result.err


@pytest.mark.parametrize("args", [("list",), ("get", "digits"), ("logs", "digits")])
async def test_missing_namespace_is_named(typed: Typed, args: tuple[str, ...]) -> None:
    result = await typed(*args, "-n", "nosuch")
    assert result.code == ExitCode.NOT_FOUND
    assert "there is no namespace 'nosuch'" in result.err
    assert "kubectl get namespaces" in result.err


async def test_user_without_right_to_namespaces_gets_an_empty_list(
    api: FakeApi, typed: Typed
) -> None:
    api.forbidden.add("namespaces")
    assert (await typed("list", "-n", "team")).code == ExitCode.DONE


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("pytorh", "Did you mean 'pytorch'"),
        ("caffe", "Kinds: pytorch, tf, mpi"),
        ("job.yaml", "-f job.yaml"),
    ],
)
async def test_unknown_kind_of_submission_is_explained(
    typed: Typed, word: str, message: str
) -> None:
    result = await typed("submit", word, "--name", "digits", "true")
    assert result.code == ExitCode.USAGE
    assert message in result.err


async def test_missing_queue_leads_to_the_list_of_queues(typed: Typed) -> None:
    result = await typed("queue", "get", "nosuch")
    assert result.code == ExitCode.NOT_FOUND
    assert "gangline queue list" in result.err


@pytest.mark.parametrize("args", [("exec", "digits", "--", "true"), ("attach", "digits")])
async def test_command_in_an_ended_job_leads_to_its_logs(
    api: FakeApi, typed: Typed, args: tuple[str, ...]
) -> None:
    add_ended_job(api)
    result = await typed(*args)
    assert result.code == ExitCode.UNEXPECTED
    assert "master-0 has ended (Completed)" in result.err
    assert "gangline logs digits -n default" in result.err


async def test_port_of_an_ended_job_is_refused(api: FakeApi, typed: Typed) -> None:
    add_ended_job(api)
    result = await typed("port-forward", "digits", "6006")
    assert result.code == ExitCode.UNEXPECTED
    assert "has succeeded: master-0 has ended (Completed)" in result.err


def add_ended_job(api: FakeApi) -> None:
    add_job(api, "digits")
    add_pod(api, "digits")
    condition = {"type": "Succeeded", "status": "True", "reason": "", "message": ""}
    api.objects[f"{KUBEFLOW}/pytorchjobs/digits"]["status"] = {"conditions": [condition]}
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    api.objects[f"{TEAM}/pods/digits-master-0"]["status"] = {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "c", "state": ended}],
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("job.yaml", b"apiVersion: v1\nkind: Pod\n", "has no arrival column"),
        ("trace.csv", b"", "has no arrival column"),
        ("trace.csv", b"\xff\xfe\x00", "is not text in UTF-8"),
        ("trace.csv", b"arrival,duration\n", "it has no jobs"),
        ("trace.csv", b"arrival,duration\n1,2,3\n", "more values"),
        ("trace.csv", b'arrival,duration\n"1,2\n', "is no trace"),
        ("trace.json", b"{}", "it has no list of jobs"),
        ("trace.json", b"3", "it has no list of jobs"),
    ],
)
async def test_file_that_is_no_trace_is_explained(
    typed: Typed, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    result = await typed("simulate", str(tmp_path / name))
    assert result.code == ExitCode.USAGE, result
    assert message in result.err
    assert "is no trace" in result.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--nodes", "0"), "'--nodes'"),
        (("--gpus", "-1"), "'--gpus'"),
        (("--jobs", "0"), "'--jobs'"),
        (("--load", "nan"), "nan is not a finite number"),
        (("--quantum", "-1"), "'--quantum'"),
        (("--save-wait", "nan"), "'--save-wait': nan is not a finite number"),
    ],
)
async def test_numbers_that_no_simulation_ends_with_are_refused(
    typed: Typed, flags: tuple[str, str], message: str
) -> None:
    result = await typed("simulate", *flags)
    assert result.code == ExitCode.USAGE, result
    assert message in result.err


async def test_job_of_a_trace_whose_queue_is_not_described_is_named(
    typed: Typed, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("name,arrival,duration,queue\na,0,1,research\n")
    result = await typed("simulate", str(trace), "--nodes", "1")
    assert result.code == ExitCode.USAGE, result
    assert "job a: there is no queue 'research'; the queues are default" in result.err


@pytest.mark.parametrize(
    ("command", "code"), [(("tensorboard", "digits"), ExitCode.UNEXPECTED), (("get", "digits"), 0)]
)
async def test_crashed_tensorboard_is_reported_with_its_reason(
    api: FakeApi, typed: Typed, command: tuple[str, ...], code: int
) -> None:
    add_job(api, "digits")
    port = {"port": 6006, "targetPort": 6006}
    spec = {"type": "ClusterIP", "clusterIP": "10.0.0.9", "selector": {"a": "b"}, "ports": [port]}
    api.add(f"{TEAM}/services/digits-tensorboard", spec=spec)
    end = {"terminated": {"exitCode": 127, "reason": "Error", "message": "tensorboard: not found"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    status = {"name": "tensorboard", "restartCount": 1, "state": waiting, "lastState": end}
    api.add(
        f"{TEAM}/pods/digits-tensorboard-x",
        metadata={"labels": {"release": "digits", "role": "tensorboard"}},
        spec={"containers": [{"name": "tensorboard"}]},
        status={"phase": "Running", "containerStatuses": [status]},
    )
    result = await typed(*command)
    assert result.code == code, result
    assert "exit code 127: tensorboard: not found" in result.out + result.err
    assert "available on" not in result.out


@pytest.mark.parametrize("group", ["top", "queue", "data", "config"])
async def test_group_without_a_command_prints_its_help(typed: Typed, group: str) -> None:
    result = await typed(group)
    assert (result.code, result.err) == (ExitCode.DONE, "")
    assert result.out.startswith(f"Usage: gangline {group} ")


async def test_unknown_format_names_all_formats(typed: Typed) -> None:
    result = await typed("list", "-o", "tabel")
    assert result.code == ExitCode.USAGE
    for each in ("table", "wide", "json", "yaml", "name", "jsonpath=TEMPLATE"):
        assert each in result.err
    result = await typed("submit", "-f", "x.yaml", "-o", "tabel")
    assert "jsonpath" not in result.err
