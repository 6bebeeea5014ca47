"""The progress endpoint on a real API server: who may report, what is stored, what is refused."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest

from gangline.api.jobs.kind import JobKind
from gangline.api.jobs.progress import report_path, token_audience
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.operator.model.job import table_entry
from gangline.operator.webhook.component import RunningWebhook
from integration.operator.cluster import NAMESPACE
from integration.operator.webhook import until, webhook
from unit.operator.kinds import KINDS

TRAIN_JOB, PYTORCH_JOB = table_entry("TrainJob"), table_entry("PyTorchJob")
TIME = "2026-11-05T12:00:00.25+01:00"
TRAIN_JOB_MANIFEST = {"spec": {"runtimeRef": {"name": "none"}}}


def report(**fields: Any) -> dict[str, Any]:
    return {"trainerStatus": {"lastUpdatedTime": TIME, **fields}}


@dataclass(frozen=True)
class Reporter:
    """A pod of a job, with the token that its kubelet would mount."""

    client: ApiClient
    kind: JobKind
    job: str
    pod: dict[str, Any]

    async def token(self, audience: str = "", bound: bool = True) -> str:
        meta = self.pod["metadata"]
        reference = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        audience = audience or token_audience(self.kind.resource, NAMESPACE, self.job)
        spec = {"audiences": [audience], **({"boundObjectRef": reference} if bound else {})}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default/token"
        answer = await self.client.request_json("POST", path, body={"spec": spec})
        return str(answer["status"]["token"])

    async def stored(self) -> Any:
        resource = replace(self.kind.resource, type=dict)
        job = await self.client.get(resource, self.job, NAMESPACE)
        return job.get("status", {}).get("trainerStatus")  # type: ignore[attr-defined]


async def create(client: ApiClient, kind: JobKind, name: str) -> Reporter:
    resource: Any = replace(kind.resource, type=dict)
    written = dict(TRAIN_JOB_MANIFEST if kind is TRAIN_JOB else KINDS[kind.identity].job(1))
    written["metadata"] = {"name": name}
    job = await client.create(resource, written, NAMESPACE)
    status = {"status": {"conditions": []}}
    await client.patch(resource, name, status, NAMESPACE, subresource="status")
    owner = {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "name": name,
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    pods: Any = replace(PODS, type=dict)
    pod = {
        "metadata": {"name": f"{name}-{kind.module}-0", "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
    return Reporter(client, kind, name, await client.create(pods, pod, NAMESPACE))


@asynccontextmanager
async def served(client: ApiClient) -> AsyncIterator["Endpoint"]:
    async with (
        webhook(client, progress=True, url="https://127.0.0.1:0") as started,
        aiohttp.ClientSession() as session,
    ):
        yield Endpoint(started, session)


@dataclass(frozen=True)
class Endpoint:
    webhook: RunningWebhook
    session: aiohttp.ClientSession

    async def post(
        self, path: str, body: Any, token: str, *, chunked: bool = False
    ) -> tuple[int, Any]:
        trusted = ssl.create_default_context(cadata=self.webhook.authorities.bundle)
        url = f"https://127.0.0.1:{self.webhook.server.port}{path}"
        headers = {"Authorization": f"Bearer {token}"}

        async def pieces() -> AsyncIterator[bytes]:
            yield body

        given: Any = {"json": body} if isinstance(body, dict) else {"data": body}
        given = {"data": pieces()} if chunked else given
        async with self.session.post(url, ssl=trusted, headers=headers, **given) as response:
            return response.status, await response.json()


@pytest.mark.parametrize("identity", ["TrainJob", "PyTorchJob", "PaddleJob", "ElasticJob"])
async def test_a_report_replaces_the_one_before_in_every_replica(
    cluster: ApiClient, identity: str
) -> None:
    pod = await create(cluster, table_entry(identity), "train")
    path, token = report_path(pod.kind.resource, NAMESPACE, "train"), await pod.token()
    first = report(progressPercentage=10, estimatedRemainingSeconds=90)
    second = report(progressPercentage=99, metrics=[{"name": "loss", "value": "nan"}])
    async with served(cluster) as leader, served(cluster) as other:
        code, answer = await leader.post(path, first, token)
        assert (code, answer["trainerStatus"]["lastUpdatedTime"]) == (200, "2026-11-05T11:00:00Z")
        assert await pod.stored() == answer["trainerStatus"]
        code, answer = await other.post(path, second, token)
        assert (code, await pod.stored()) == (200, answer["trainerStatus"])
        assert "estimatedRemainingSeconds" not in answer["trainerStatus"]
        assert await other.post(path, {}, token) == (200, {})
    assert (await pod.stored())["progressPercentage"] == 99


async def test_only_pods_of_the_job_may_report(cluster: ApiClient) -> None:
    own = await create(cluster, TRAIN_JOB, "train")
    others = [
        await create(cluster, TRAIN_JOB, "other"),
        await create(cluster, PYTORCH_JOB, "train"),
    ]
    audience = token_audience(TRAIN_JOB.resource, NAMESPACE, "train")
    token = await own.token()
    refused = {
        "of another job": await others[0].token(),
        "of another job's pod, for this job": await others[0].token(audience),
        "of another kind's pod, for this job": await others[1].token(audience),
        "of no pod": await own.token(bound=False),
        "for the API server": await own.token("https://kubernetes.default.svc"),
        "with another signature": f"{token.rpartition('.')[0]}.AAAA",
        "garbage": "a.b.c",
        "none": "",
    }
    path = report_path(TRAIN_JOB.resource, NAMESPACE, "train")
    async with served(cluster) as endpoint:
        for whose, wrong in refused.items():
            code, answer = await endpoint.post(path, report(progressPercentage=1), wrong)
            expected = {"status": "Failure", "reason": "Forbidden", "code": 403}
            expected |= {"message": "Forbidden", "metadata": {}}
            assert (code, answer) == (403, expected), whose
        assert await own.stored() is None
        assert (await endpoint.post(path, report(), token))[0] == 200


async def test_reports_of_a_deleted_job_do_not_reach_its_successor(cluster: ApiClient) -> None:
    old = await create(cluster, PYTORCH_JOB, "train")
    path, token = report_path(PYTORCH_JOB.resource, NAMESPACE, "train"), await old.token()
    async with served(cluster) as endpoint:
        assert (await endpoint.post(path, report(), token))[0] == 200
        await cluster.delete(PYTORCH_JOB.resource, "train", NAMESPACE)
        await cluster.delete(PODS, old.pod["metadata"]["name"], NAMESPACE, grace_seconds=0)
        new = await create(cluster, PYTORCH_JOB, "train")

        async def is_refused() -> bool:
            return (await endpoint.post(path, report(), token))[0] == 404

        await until(is_refused, "the deleted job was not found")
        assert await new.stored() is None


async def test_a_report_that_cannot_be_stored_is_refused_by_its_field(cluster: ApiClient) -> None:
    pod = await create(cluster, TRAIN_JOB, "train")
    path, token = report_path(TRAIN_JOB.resource, NAMESPACE, "train"), await pod.token()
    metric = {"name": "loss", "value": "1"}
    wrong: list[tuple[Any, int, str]] = [
        (b"{", 422, "Invalid payload"),
        (b"[" * 60_000, 422, "Invalid payload"),
        (b'{"trainerStatus": {"progressPercentage": NaN}}', 422, "Invalid payload"),
        (
            report(progressPercentage=101),
            422,
            "`int` <= 100 - at `$.trainerStatus.progressPercentage`",
        ),
        (report(progressPercentage="half"), 422, "progressPercentage"),
        (report(estimatedRemainingSeconds=-1), 422, "estimatedRemainingSeconds"),
        (report(estimatedRemainingSeconds=1 << 40), 422, "estimatedRemainingSeconds"),
        (report(lastUpdatedTime=None), 422, "lastUpdatedTime"),
        (report(lastUpdatedTime="2026-11-05T12:00:00"), 422, "lastUpdatedTime"),
        (report(lastUpdatedTime="0001-01-01T00:00:00+14:00"), 422, "Invalid payload"),
        (report(metrics=[metric] * 257), 422, "length <= 256 - at `$.trainerStatus.metrics`"),
        (report(metrics=[{**metric, "name": "x" * 65}]), 422, "metrics[0].name"),
        (
            report(metrics=[{"name": "loss"}]),
            422,
            "required field `value` - at `$.trainerStatus.metrics[0]`",
        ),
        (b" " * (1 << 17), 413, "Payload too large"),
    ]
    async with served(cluster) as endpoint:
        for body, code, words in wrong:
            for chunked in (False, True) if isinstance(body, bytes) else (False,):
                answer = await endpoint.post(path, body, token, chunked=chunked)
                assert answer[0] == answer[1]["code"] == code, (words, answer)
                assert words in answer[1]["message"]
        for unknown in (f"{path}/x", path.replace("trainjobs", "pods")):
            assert (await endpoint.post(unknown, {}, token))[0] == 404
        assert await pod.stored() is None
        assert (await endpoint.post(path, report(metrics=None), token))[0] == 200
