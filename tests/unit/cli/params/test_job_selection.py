"""Job selection by name, by labels and over all namespaces."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gangline.cli import main
from gangline.cli.errors import ExitCode
from gangline.cli.params import job_selection
from unit.cli.fake_api import FakeApi

Typed = Callable[..., Awaitable[str]]
TEMPLATE = {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}
ENDED = {"type": "Succeeded", "status": "True", "reason": "JobSucceeded", "message": "done"}


@pytest.fixture
def api(api: FakeApi) -> FakeApi:
    """Three jobs: two of a team, one of them in another namespace, and one without team."""
    for namespace, name, labels in (
        ("default", "digits", {"team": "a"}),
        ("default", "letters", {}),
        ("other", "digits", {"team": "a"}),
    ):
        path = f"/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/{name}"
        api.add(
            path,
            apiVersion="kubeflow.org/v1",
            kind="PyTorchJob",
            metadata={"labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"},
            spec={"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": TEMPLATE}}},
            status={"conditions": [ENDED]},
        )
    return api


@pytest.fixture
def typed(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> Typed:
    async def run(*args: str, ends: ExitCode = ExitCode.DONE) -> str:
        code = await asyncio.to_thread(main.run, list(args))
        captured = capsys.readouterr()
        assert code == ends, captured.err
        return captured.err if ends else captured.out

    return run


def names(fragment: str) -> list[tuple[str, str]]:
    found: list[dict[str, Any]] = json.loads(fragment)
    return sorted((each["namespace"], each["name"]) for each in found)


TEAM = [("default", "digits"), ("other", "digits")]


@pytest.mark.parametrize("command", ["get", "describe", "wait"])
async def test_jobs_are_chosen_by_labels_and_everywhere(typed: Typed, command: str) -> None:
    assert names(await typed(command, "-l", "team=a", "-o", "json")) == TEAM[:1]
    assert names(await typed(command, "-A", "-l", "team", "-o", "json")) == TEAM
    assert names(await typed(command, "digits", "-A", "-o", "json")) == TEAM
    assert len(names(await typed(command, "-A", "-o", "json"))) == 3
    one = json.loads(await typed(command, "letters", "-o", "json"))
    assert one["name"] == "letters"


@pytest.mark.parametrize("command", ["get", "describe", "wait"])
async def test_each_form_of_output_is_to_be_had(typed: Typed, command: str) -> None:
    assert "digits" in await typed(command, "digits", "-o", "wide")
    assert "name: digits" in await typed(command, "digits", "-o", "yaml")
    assert await typed(command, "digits", "-o", "name") == "pytorchjob/digits\n"
    assert await typed(command, "digits", "-o", "jsonpath={.status}") == "SUCCEEDED\n"


@pytest.mark.parametrize("command", ["get", "describe", "wait"])
async def test_a_choice_of_nothing_or_of_two_kinds_is_refused(typed: Typed, command: str) -> None:
    fragment = await typed(command, ends=ExitCode.USAGE)
    assert "--selector" in fragment
    fragment = await typed(command, "digits", "-l", "team=a", ends=ExitCode.USAGE)
    assert "exclude each other" in fragment
    fragment = await typed(command, "no-such-job", "-A", ends=ExitCode.NOT_FOUND)
    assert "'no-such-job'" in fragment


async def test_several_jobs_are_waited_for_and_named_in_full(typed: Typed) -> None:
    fragment = await typed("wait", "-A", "-l", "team=a")
    assert fragment == "pytorchjob/digits SUCCEEDED\n" * 2
    assert "no job matches" in await typed("wait", "-l", "team=b", ends=ExitCode.UNEXPECTED)


async def test_a_page_holds_conditions_specification_and_events(typed: Typed) -> None:
    page = json.loads(await typed("describe", "digits", "-o", "json"))
    assert page["conditions"][0]["type"] == "Succeeded"
    assert page["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] == 1
    assert page["events"] == []
    shown = await typed("describe", "-l", "team=a", "-A")
    assert shown.count("Conditions:") == 2


async def test_events_of_selected_jobs_include_objects_named_after_them(
    api: FakeApi, typed: Typed
) -> None:
    for number, (namespace, subject) in enumerate(
        [("default", "digits-master-0"), ("default", "letters"), ("other", "digits")]
    ):
        api.add(
            f"/api/v1/namespaces/{namespace}/events/e{number}",
            involvedObject={"kind": "Pod", "name": subject, "namespace": namespace},
            reason=f"R{number}",
            type="Normal",
            lastTimestamp="2026-01-01T00:00:00Z",
        )
    assert await typed("events", "-l", "team=a", "-o", "name") == "pod/digits-master-0\n"
    found = json.loads(await typed("events", "-l", "team=a", "-A", "-o", "json"))
    assert sorted(each["reason"] for each in found) == ["R0", "R2"]
    assert "COUNT" in await typed("events", "-o", "wide")


async def test_nodes_claims_and_queues_are_chosen_by_labels(api: FakeApi, typed: Typed) -> None:
    bound = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
    for name, team in (("one", "a"), ("two", "b")):
        labels = {"labels": {"team": team}}
        api.add(f"/api/v1/nodes/{name}", metadata=labels, status={})
        claims = "/api/v1/namespaces/default/persistentvolumeclaims"
        api.add(f"{claims}/{name}", metadata=labels, status=bound)
        api.add(f"/apis/scheduling.volcano.sh/v1beta1/queues/{name}", metadata=labels)
    assert await typed("top", "node", "-l", "team=a", "-o", "name") == "node/one\n"
    assert await typed("data", "list", "-l", "team=b", "-o", "name") == (
        "persistentvolumeclaim/two\n"
    )
    assert await typed("queue", "list", "-l", "team=a", "-o", "name") == "queue/one\n"
    assert "exclude each other" in await typed(
        "top", "node", "one", "-l", "a=b", ends=ExitCode.USAGE
    )


async def test_watched_objects_are_printed_again_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_selection, "WATCH_INTERVAL_S", 0.0)

    class Thing:
        def __init__(self, uid: str, value: int) -> None:
            self.metadata = self
            self.uid, self.value = uid, value

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Thing) and (self.uid, self.value) == (other.uid, other.value)

        __hash__ = None  # type: ignore[assignment]

    looks = iter([[Thing("a", 1), Thing("b", 1)], [Thing("a", 1), Thing("b", 1)], [Thing("b", 2)]])

    async def look() -> list[Any]:
        return next(looks)

    changes = job_selection.poll_changes(look, watch=True)
    things, head = await anext(changes)
    assert (len(things), head) == (2, True)
    things, head = await anext(changes)
    assert ([each.value for each in things], head) == ([2], False)
    await changes.aclose()  # type: ignore[attr-defined]
    once = [each async for each in job_selection.poll_changes(_one_look, watch=False)]
    assert len(once) == 1


async def _one_look() -> list[Any]:
    return []
