"""Tables, blocks, plain data and log lines."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import yaml

from gangline.api.core.node import Node
from gangline.api.core.pod import Pod
from gangline.cli.render.jobs import format_job, job_data, job_table
from gangline.cli.render.log_lines import LogLineWriter
from gangline.cli.render.output import format_age, format_table, serialize
from gangline.sdk.goodput import goodput_data, parse_goodput
from gangline.sdk.jobs import Job, JobState, Replica
from gangline.sdk.kinds import JOB_KINDS
from gangline.sdk.logs import LogLine
from gangline.sdk.nodes import read_nodes

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def a_job(name: str = "digits", **fields: Any) -> Job:
    master = Replica(f"{name}-master-0", "master", 0, "Running", True, node="n1", gpus=2)
    facts: dict[str, Any] = {
        "kind": JOB_KINDS[0],
        "name": name,
        "namespace": "team",
        "uid": "u",
        "state": JobState.RUNNING,
        "reason": "",
        "replicas": (master,),
        "desired": 3,
        "requested_gpus": 6,
        "created": NOW - timedelta(minutes=5),
        "started": NOW - timedelta(minutes=3),
    }
    return Job(**facts | fields)


def test_a_line_break_does_not_tear_a_row_apart() -> None:
    assert format_table(["A"], [["one\ntwo"]]).splitlines() == ["A", "one two"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0, "0s"), (59, "59s"), (60, "1m"), (7199, "1h"), (172_800, "2d"), (4e7, "1y")],
)
def test_a_time_span_has_its_largest_unit(seconds: float, text: str) -> None:
    assert format_age(NOW - timedelta(seconds=seconds), NOW) == text


def test_the_list_has_the_known_columns_and_ours_to_the_right() -> None:
    lines = job_table([a_job()], NOW, namespaces=False, wide=False).splitlines()
    assert lines[0].split() == [
        "NAME", "STATUS", "TRAINER", "DURATION", "GPU(Requested)", "GPU(Allocated)", "NODE",
        "RUNNING", "AGE",
    ]  # fmt: skip
    assert lines[1].split() == [
        "digits",
        "RUNNING",
        "PYTORCHJOB",
        "3m",
        "6",
        "2",
        "n1",
        "1/3",
        "5m",
    ]


def test_all_namespaces_come_first_and_reasons_last() -> None:
    job = a_job(state=JobState.QUEUING, reason="2 cpu short", started=None)
    lines = job_table([job], NOW, namespaces=True, wide=True).splitlines()
    assert lines[0].startswith("NAMESPACE  NAME")
    assert lines[0].endswith("REASON")
    assert lines[1].startswith("team ")
    assert lines[1].endswith("2 cpu short")


def test_a_finished_job_has_no_gpus_any_more() -> None:
    job = a_job(state=JobState.SUCCEEDED, finished=NOW - timedelta(minutes=1))
    row = job_table([job], NOW, namespaces=False, wide=False).splitlines()[1].split()
    assert row[3:6] == ["2m", "6", "N/A"]


def test_a_job_is_shown_with_its_replicas_and_its_reason() -> None:
    block = format_job(a_job(reason="it waits", queue="team-a"), NOW)
    assert "Name:       digits" in block
    assert "Reason:     it waits" in block
    assert "Queue:      team-a" in block
    assert "  digits-master-0  Running" in block


def test_the_account_of_an_elastic_job_is_shown_with_it() -> None:
    assert parse_goodput({"other": "args"}) is None
    account = parse_goodput({
        "goodput": "0.9125", "wallSeconds": "400.0", "productiveSeconds": "365.0",
        "unproductive": "restarting 35.0 s", "step": "120", "stepsPerSecond": "2.5",
        "checkpointStep": "100", "restarts": "2",
    })  # fmt: skip
    assert account is not None
    block = format_job(a_job(), NOW, [("Goodput", account.summary), ("Step", account.progress)])
    assert "Goodput:    91.2% of 400 s; the rest: restarting 35.0 s" in block
    assert "Step:       120, 2.5/s, checkpoint of 100" in block
    assert goodput_data(account)["restarts"] == 2


def test_plain_data_has_the_known_keys() -> None:
    data = job_data(a_job(), NOW)
    known = "uuid name namespace duration status trainer chiefName instances priority requestGPUs"
    assert set(known.split()) <= data.keys()
    assert data["chiefName"] == "digits-master-0"
    instance = data["instances"][0]
    assert (
        set(["ip", "status", "name", "age", "node", "nodeIP", "chief", "requestGPUs"])
        <= instance.keys()
    )
    assert json.loads(serialize(data, "json")) == yaml.safe_load(serialize(data, "yaml")) == data


def test_yaml_writes_repeated_values_in_full() -> None:
    shared = {"a": 1}
    assert "&" not in serialize([shared, shared], "yaml")


def test_nodes_count_what_their_living_pods_ask_for() -> None:
    node = {
        "metadata": {"name": "n1", "labels": {"node-role.kubernetes.io/worker": ""}},
        "spec": {"unschedulable": True},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    }

    def pod(phase: str) -> Pod:
        resources = {"requests": {"cpu": "500m", "nvidia.com/gpu": "1"}}
        spec = {"nodeName": "n1", "containers": [{"name": "c", "resources": resources}]}
        return msgspec.convert({"spec": spec, "status": {"phase": phase}}, Pod)

    pods = [pod("Running"), pod("Succeeded"), Pod()]
    view = read_nodes([msgspec.convert(node, Node)], pods)[0]
    assert (view.role, view.status) == ("worker", "Ready,SchedulingDisabled")
    assert view.address == "10.0.0.1"
    assert view.allocated == {"cpu": 500, "nvidia.com/gpu": 1, "pods": 1}


def test_lines_that_come_together_are_written_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [LogLine("t", f"worker-{n % 2}", f"line {n}") for n in range(4)]
    writer = LogLineWriter(marked=True)
    writer.write(*lines[:3])
    writer.write()
    writer.write(lines[3])
    assert capsys.readouterr().out == "".join(f"[{e.replica}] {e.text}\n" for e in lines)
    assert writer.lines == 4
