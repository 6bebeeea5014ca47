"""``logs --previous``: restarted containers, replaced pods, and clusters without stored logs.

The command talks to a server with one job and the logs of the test.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gangline.cli import main
from gangline.cli.errors import ExitCode

OWNER = {
    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "job", "uid": "u",
    "controller": True,
}  # fmt: skip
NAMES = {"master-0": "job-master-0", "worker-0": "job-worker-0"}


def pod(replica: str, *, restarted: bool = False) -> dict[str, Any]:
    role, _, index = replica.rpartition("-")
    labels = {
        "training.kubeflow.org/job-name": "job",
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": index,
    }
    status: dict[str, Any] = {"name": "c", "state": {"running": {}}, "restartCount": int(restarted)}
    if restarted:
        status["lastState"] = {"terminated": {"exitCode": 1}}
    metadata = {"name": NAMES[replica], "namespace": "default", "labels": labels}
    return {
        "metadata": metadata | {"ownerReferences": [OWNER]},
        "spec": {"containers": [{"name": "c"}], "nodeName": "n"},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


@dataclass
class World:
    """What the server has."""

    pods: list[dict[str, Any]] = field(default_factory=list)
    gone: list[dict[str, Any]] | None = None
    """None: it does not store logs of pods that are gone, as Kubernetes."""
    logs: dict[tuple[str, bool, bool], str] = field(default_factory=dict)
    """By pod name, whether the previous container is requested, and whether the pod is deleted."""
    finished: bool = False
    requested: list[tuple[str, bool, bool]] = field(default_factory=list)

    async def job(self, request: web.Request) -> web.Response:
        if request.match_info["kind"] != "pytorchjobs":
            return _not_found()
        template = {"spec": {"containers": [{"name": "c"}]}}
        specs = {role: {"replicas": 1, "template": template} for role in ("Master", "Worker")}
        conditions = [{"type": "Succeeded", "status": "True"}] if self.finished else []
        metadata = {"name": "job", "namespace": "default", "uid": "u"}
        spec = {"pytorchReplicaSpecs": specs}
        return web.json_response(
            {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}
        )

    async def listed(self, request: web.Request) -> web.Response:
        pods = self.pods if request.path.endswith("/pods") else []
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": pods})

    async def log(self, request: web.Request) -> web.Response:
        name, deleted = request.match_info["pod"], "keptFor" in request.query
        if name == "-":
            if self.gone is None:
                return _not_found()
            return web.Response(text="".join(f"{json.dumps(each)}\n" for each in self.gone))
        key = (name, request.query.get("previous") == "true", deleted)
        self.requested.append(key)
        text = self.logs.get(key)
        return _not_found() if text is None else web.Response(text=f"2026-01-01T00:00:00Z {text}\n")


def _not_found() -> web.Response:
    status = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
    return web.json_response(status, status=404)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made, app = World(), web.Application()
    team = "/api/v1/namespaces/default/pods"
    app.add_routes(
        [
            web.get("/apis/{group}/{version}/namespaces/default/{kind}/job", made.job),
            web.get("/apis/{group}/{version}/namespaces/default/podgroups", made.listed),
            web.get(team, made.listed),
            web.get(team + "/{pod}/log", made.log),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cluster = {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("HOME", str(tmp_path))
    yield made
    await runner.cleanup()


async def logs(*flags: str) -> int:
    return await asyncio.to_thread(main.run, ["logs", "job", *flags])


async def test_of_all_replicas_those_that_were_not_restarted_are_passed_over(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.pods = [pod("master-0"), pod("worker-0", restarted=True)]
    world.logs[NAMES["worker-0"], True, False] = "before"
    assert await logs("--all", "--previous") == ExitCode.DONE
    assert capsys.readouterr().out == "[worker-0] before\n"
    assert world.requested == [(NAMES["worker-0"], True, False)]


async def test_previous_logs_of_a_new_pod_are_those_of_the_replaced_pod(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.pods, world.gone = [pod("master-0"), pod("worker-0")], [pod("master-0")]
    world.logs[NAMES["master-0"], False, True] = "the last of the pod before"
    assert await logs("--previous") == ExitCode.DONE
    assert capsys.readouterr().out == "the last of the pod before\n"


async def test_previous_log_of_deleted_pod_is_read(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.gone, world.finished = [pod("master-0"), pod("worker-0")], True
    world.logs[NAMES["worker-0"], True, True] = "before"
    # Nothing ran before in the master: that is no error while another replica has something.
    assert await logs("--all", "-p", "-f") == ExitCode.DONE
    assert capsys.readouterr().out == "[worker-0] before\n"


@pytest.mark.parametrize(
    ("gone", "why"), [(None, "does not store logs"), ([], "no log of an earlier pod")]
)
async def test_without_previous_logs_the_message_names_what_the_cluster_stores(
    world: World,
    capsys: pytest.CaptureFixture[str],
    gone: list[dict[str, Any]] | None,
    why: str,
) -> None:
    world.pods, world.gone = [pod("master-0")], gone
    assert await logs("--previous") == ExitCode.UNEXPECTED
    result = capsys.readouterr()
    assert not result.out
    assert "no container was restarted" in result.err
    assert why in result.err
    # Lines of the last minute may well be none: that is no mistake.
    assert await logs("--previous", "--since", "1m") == ExitCode.DONE


async def test_deleted_pods_without_logs_are_reported(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.finished = True
    assert await logs() == ExitCode.DONE
    assert "does not store logs of deleted pods" in capsys.readouterr().err
    world.gone = []
    assert await logs() == ExitCode.DONE
    assert "does not store logs" not in capsys.readouterr().err
