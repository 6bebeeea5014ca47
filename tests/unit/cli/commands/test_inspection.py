"""Output of the commands that inspect jobs, and parsing of their flags."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec
import pytest

from gangline.api.core.node import Node
from gangline.api.core.service import Service
from gangline.api.core.storage import PersistentVolumeClaim
from gangline.cli.commands.data import claim_table
from gangline.cli.commands.delete import select_expired
from gangline.cli.commands.exec import parse_port_mapping, select_replica
from gangline.cli.commands.logs import select_ranks
from gangline.cli.commands.tensorboard import find_event_mount
from gangline.cli.commands.top_job import (
    add_gpu_usage,
    format_job_usage,
    format_replica_usage,
    usage_data,
)
from gangline.cli.commands.wait import has_reached
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.render.jobs import current_time
from gangline.cli.render.jsonpath import render_template
from gangline.cli.render.log_lines import LogLineWriter
from gangline.cli.render.nodes import SparklineHistory, sparkline
from gangline.cli.render.output import without_rounding_errors
from gangline.sdk.addresses import service_address
from gangline.sdk.client import UnknownKind, resolve_kinds
from gangline.sdk.events import EventRecord, newest_mount_failure
from gangline.sdk.jobs import Job, JobState, Replica
from gangline.sdk.kinds import JOB_KINDS
from gangline.sdk.logs import LogLine
from gangline.sdk.usage import GpuUsage, ResourceUsage, parse_usage

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def made(kind: Any, **fields: Any) -> Any:
    return msgspec.convert(fields, kind, strict=False)


def a_job(name: str = "a", state: JobState = JobState.RUNNING, **fields: Any) -> Job:
    replicas = (
        Replica(f"{name}-master-0", "master", 0, "Running", True, node="n1", gpus=1),
        Replica(f"{name}-worker-0", "worker", 0, "Running", False, node="n2", gpus=1),
    )
    facts: dict[str, Any] = {
        "kind": JOB_KINDS[0], "name": name, "namespace": "team", "uid": name, "state": state,
        "reason": "", "replicas": replicas, "desired": 2, "requested_gpus": 2,
        "created": NOW - timedelta(hours=2), "started": NOW - timedelta(hours=1),
        "roles": (("master", 1), ("worker", 3)),
    }  # fmt: skip
    return Job(**facts | fields)


USAGE = {
    ("team", "a-master-0"): ResourceUsage(1.5, 2**30),
    ("team", "a-worker-0"): ResourceUsage(0.5, 2**30),
}


def test_the_gpus_of_running_jobs_are_summed_up() -> None:
    jobs = [a_job(), a_job("b", JobState.SUCCEEDED)]
    lines = format_job_usage(jobs, USAGE, NOW, namespaces=False).splitlines()
    assert lines[0].split()[:7] == [
        "NAME", "STATUS", "TRAINER", "AGE", "GPU(Requested)", "GPU(Allocated)", "NODE",
    ]  # fmt: skip
    assert lines[1].split()[4:] == ["2", "2", "n1", "2.00", "2048Mi"]
    assert lines[2].split()[-2:] == ["N/A", "N/A"]
    assert lines[-1] == "Total Allocated/Requested GPUs of Training Jobs: 2/2"


def test_what_replicas_use_is_shown_one_by_one() -> None:
    shown = format_replica_usage(a_job(), USAGE, "worker-0")
    assert re.search(r"a-worker-0 +Running +1 +n2 +0.50 +1024Mi", shown)
    assert "a-master-0" not in shown
    assert shown.endswith("Allocated/Requested GPUs of Job: 2/2")
    assert usage_data(a_job(), USAGE, NOW)["usedCPU"] == 2.0
    assert usage_data(a_job("b"), USAGE, NOW)["usedCPU"] is None


def test_gpus_in_use_are_shown_where_something_measures_them() -> None:
    busy = GpuUsage({("team", "a-master-0"): 0.75}, {"n1": 0.75})
    usage = add_gpu_usage(USAGE, busy)
    assert add_gpu_usage(USAGE, None) == USAGE
    lines = format_job_usage([a_job(), a_job("b")], usage, NOW, namespaces=False).splitlines()
    assert lines[0].endswith("GPU(Used)")
    assert [line.split()[-1] for line in lines[1:3]] == ["0.75", "N/A"]
    assert re.search(r"a-worker-0 .* 1024Mi +N/A", format_replica_usage(a_job(), usage, ""))
    assert usage_data(a_job(), usage, NOW)["usedGPUs"] == 0.75


def test_plain_data_has_no_rounding_errors() -> None:
    data = {"a": [0.1 + 0.2, (100 * 0.28,)], "b": 1, "c": None}
    assert without_rounding_errors(data) == {"a": [0.3, [28.0]], "b": 1, "c": None}


def test_sparklines_show_recent_values() -> None:
    assert sparkline([0, 1, 2, 4], 4) == "▁▃▅█"
    assert sparkline([0, 0, -1], 0) == "▁▁▁"
    history = SparklineHistory()
    assert not history
    for figure in range(30):
        history.record({"a": figure, ("team", "a-worker-0"): 1})
    assert [list(map(len, column[1:])) for column in history.columns(["a", "b"])] == [[20, 0]]
    lines = format_job_usage([a_job()], USAGE, NOW, namespaces=False, history=history).splitlines()
    assert lines[0].endswith("CPU(0 to 29 cores)")
    assert lines[1].endswith("▃▄▄▄▄▅▅▅▅▆▆▆▆▇▇▇▇███")
    assert re.search(
        r"a-worker-0 .* █+\n", format_replica_usage(a_job(), USAGE, "worker-0", history)
    )
    history.record({"b": 1})
    assert not history


def test_sparklines_of_a_table_have_the_scale_that_its_header_names() -> None:
    history = SparklineHistory()
    for figure in (0.0, 2.0):
        history.record({"busy": 4 * figure, "idle": figure})
    assert history.columns(["busy", "idle"]) == [["CPU(0 to 8 cores)", "▁█", "▁▃"]]
    assert history.columns(["idle"]) == [["CPU(0 to 2 cores)", "▁█"]]


def test_usage_of_containers_is_added_up() -> None:
    pod = {"containers": [{"usage": {"cpu": "250m", "memory": "1Ki"}}] * 2}
    assert parse_usage(pod) == ResourceUsage(0.5, 2048)
    assert parse_usage({"usage": {"cpu": "1", "memory": "x"}}) == ResourceUsage(1, 0)


def test_mount_failure_is_that_of_the_jobs_pods_or_of_its_tensorboard() -> None:
    def event(reason: str, name: str) -> EventRecord:
        return EventRecord(NOW, "Warning", f"pod/{name}", reason, f"of {name}", 1)

    events = [
        event("FailedMount", "digits-worker-0"),
        event("FailedAttachVolume", "digits-worker-1"),
        event("FailedMount", "digits-tensorboard-x"),
        event("Unhealthy", "digits-worker-0"),
    ]
    assert newest_mount_failure(events, "digits") == "FailedAttachVolume: of digits-worker-1"
    board = newest_mount_failure(events, "digits", tensorboard=True)
    assert board == "FailedMount: of digits-tensorboard-x"
    assert newest_mount_failure(events[3:], "digits") == ""


def test_claims_are_listed_with_their_annotations() -> None:
    claim = made(
        PersistentVolumeClaim,
        metadata={
            "name": "training-data",
            "namespace": "team",
            "annotations": {"description": "pictures", "owner": "ann"},
            "creationTimestamp": current_time().isoformat(),
        },
        spec={"accessModes": ["ReadWriteMany"], "volumeName": "v"},
        status={"phase": "Bound", "capacity": {"storage": "1Gi"}},
    )
    head, row = claim_table([claim], namespaces=False, wide=False).splitlines()
    assert head.split() == ["NAME", "ACCESSMODE", "DESCRIPTION", "OWNER", "AGE"]
    assert row.split() == ["training-data", "ReadWriteMany", "pictures", "ann", "0s"]
    assert "1Gi" in claim_table([claim], namespaces=True, wide=True)


def test_templates_are_filled_as_kubectl_does() -> None:
    value = {"items": [{"name": "a", "n": 1}, {"name": "b", "n": 2}]}
    assert render_template("{.items[*].name}", value) == "a b"
    assert render_template(".items[0].n", value) == "1"
    assert render_template('x{.items[1].name}{"\\n"}', value) == "xb\n"
    for wrong in ("{.items", "{[}", '{"a}'):
        with pytest.raises(click.BadParameter):
            render_template(wrong, value)


RANKS = ["master-0", "worker-0", "worker-1", "worker-2"]


def test_ranks_are_counted_from_the_leading_replica() -> None:
    assert list(a_job().ranks) == RANKS
    assert select_ranks(RANKS, "0,2-3") == ["master-0", "worker-1", "worker-2"]
    assert select_ranks(RANKS, "") == []
    for wrong in ("4", "2-1", "x", "-1"):
        with pytest.raises(click.BadParameter):
            select_ranks(RANKS, wrong)


def test_only_lines_with_the_pattern_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    writer = LogLineWriter(marked=False, pattern=re.compile("loss=0"))
    for text in ("loss=0.1", "hello"):
        writer.write(LogLine("t", "master-0", text))
    assert capsys.readouterr().out == "loss=0.1\n"
    assert writer.lines == 2


def test_only_jobs_that_ended_long_ago_are_pruned() -> None:
    ended = {"finished": NOW - timedelta(hours=1)}
    jobs = [
        a_job("runs"), a_job("waits", JobState.PENDING), a_job("held", JobState.SUSPENDED),
        a_job("good", JobState.SUCCEEDED, **ended), a_job("bad", JobState.FAILED, **ended),
        a_job("late", JobState.SUCCEEDED, finished=NOW),
    ]  # fmt: skip
    longer = timedelta(minutes=30)
    assert [job.name for job in select_expired(jobs, NOW, longer, failed_only=False)] == [
        "good",
        "bad",
    ]
    assert [job.name for job in select_expired(jobs, NOW, longer, failed_only=True)] == ["bad"]


@pytest.mark.parametrize(
    ("state", "goal", "expected"),
    [
        (JobState.RUNNING, "finished", False),
        (JobState.SUCCEEDED, "finished", True),
        (JobState.FAILED, "failed", True),
        (JobState.RUNNING, "running", True),
        (JobState.SUSPENDED, "suspended", True),
        (JobState.SUCCEEDED, "deleted", False),
        (JobState.FAILED, "finished", ExitCode.JOB_FAILED),
        (JobState.FAILED, "running", ExitCode.JOB_FAILED),
        (JobState.SUCCEEDED, "running", ExitCode.UNEXPECTED),
        (JobState.SUCCEEDED, "failed", ExitCode.UNEXPECTED),
    ],
)
def test_a_goal_is_reached_or_never_will_be(
    state: JobState, goal: str, expected: bool | ExitCode
) -> None:
    if isinstance(expected, bool):
        assert has_reached(a_job(state=state), goal) is expected
        return
    with pytest.raises(CommandError) as result:
        has_reached(a_job(state=state), goal)
    assert result.value.code == expected


def test_ports_are_read_as_kubectl_does() -> None:
    assert [parse_port_mapping(text) for text in ("9090:6006", "6006", ":6006", "0:80")] == [
        (9090, 6006), (6006, 6006), (0, 6006), (0, 80),
    ]  # fmt: skip
    for wrong in ("x", "1:2:3", "70000", "1:"):
        with pytest.raises(click.BadParameter):
            parse_port_mapping(wrong)


def test_a_replica_is_picked_by_either_name() -> None:
    job = a_job()
    assert select_replica(job, "").name == "a-master-0"
    assert select_replica(job, "worker-0") is select_replica(job, "a-worker-0")
    for wrong in (
        lambda: select_replica(job, "ps-0"),
        lambda: select_replica(a_job(replicas=()), ""),
    ):
        with pytest.raises(CommandError):
            wrong()


def test_a_board_is_reached_at_the_nodes_or_within_the_cluster() -> None:
    ports = [{"port": 6006, "nodePort": 30131}]
    node = made(Node, status={"addresses": [{"type": "InternalIP", "address": "10.1.1.1"}]})
    open_service = made(Service, spec={"type": "NodePort", "clusterIP": "10.0.0.7", "ports": ports})
    assert service_address(open_service, [node]) == "http://10.1.1.1:30131"
    assert service_address(open_service, []) == "http://10.0.0.7:6006"
    assert service_address(made(Service, spec={}), []) == ""


def test_a_later_board_mounts_the_volume_that_holds_the_events() -> None:
    volumes = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "set", "persistentVolumeClaim": {"claimName": "set"}},
    ]
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "set", "mountPath": "/data"}]
    pod = {"volumes": volumes, "containers": [{"volumeMounts": mounts}]}
    job = {"spec": {"jaxReplicaSpecs": {"Worker": {"template": {"spec": pod}}}}}
    assert find_event_mount(job, "/data/logs") == [(volumes[1], mounts[1])]
    for elsewhere in ("/tmp/logs", "/database"):
        with pytest.raises(CommandError):
            find_event_mount(job, elsewhere)


@pytest.mark.parametrize("word", ["pytorchjob", "PyTorch", "py"])
def test_kinds_are_known_by_all_of_their_names(word: str) -> None:
    assert [kind.trainer for kind in resolve_kinds(word)] == ["pytorchjob"]


@pytest.mark.parametrize(
    ("word", "trainer"),
    [
        ("paddlejob", "paddlejob"),
        ("paddle", "paddlejob"),
        ("paddlejobs.batch.paddlepaddle.org", "paddlejob"),
        ("PaddleJob.kubeflow.org", "paddlejob.kubeflow.org"),
        ("paddlejobs.kubeflow.org", "paddlejob.kubeflow.org"),
        ("kpdj", "paddlejob.kubeflow.org"),
    ],
)
def test_a_group_tells_kinds_of_one_name_apart(word: str, trainer: str) -> None:
    assert [kind.trainer for kind in resolve_kinds(word)] == [trainer]


def test_an_unknown_kind_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(UnknownKind, match="tfjob"):
        resolve_kinds("keras")
    assert resolve_kinds("") == JOB_KINDS
