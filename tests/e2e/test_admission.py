"""Jobs are validated and defaulted before they are stored, with both API servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from e2e.jobs import Manifest, job, replica
from e2e.scenario import Scenario
from e2e.waiting import eventually
from gangline.api.resources import NAMESPACES, PYTORCH_JOBS
from gangline.kube.errors import ApiError, Invalid
from gangline.operator.main import all_frameworks
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook.component import run_webhook
from gangline.operator.webhook.settings import CertificateValidity, FailurePolicy, WebhookSettings


@asynccontextmanager
async def checked(
    scenario: Scenario, validity: CertificateValidity
) -> AsyncIterator[WebhookSettings]:
    """Validate the jobs of this scenario's namespace; refuse them if the webhook fails."""
    name = scenario.namespace
    # Kubernetes gives each namespace this label from 1.21 on.
    label = {"metadata": {"labels": {"kubernetes.io/metadata.name": name}}}
    await scenario.client.patch(NAMESPACES, name, label)
    settings = replace(
        WebhookSettings.for_embedded_cluster(),
        namespace=name,
        configuration=name,
        namespaces=(name,),
        failure_policy=FailurePolicy.FAIL,
        validity=validity,
        resync_s=0.5,
    )
    async with run_webhook(
        scenario.client, settings, all_frameworks(OperatorSettings())
    ) as webhook:
        assert webhook is not None
        async with asyncio.timeout(30):
            await webhook.controller.registered.wait()

        async def asked() -> bool:
            """An API server uses a new webhook after a delay."""
            try:
                await scenario.client.create(
                    PYTORCH_JOBS, spoilt("probe"), scenario.namespace, dry_run=True
                )
            except Invalid:
                return True
            return False

        await eventually(asked, "the API server asks")
        yield settings


def held(name: str) -> Manifest:
    """A suspended job, so that it has no pods."""
    return job(name, replica("true"), replica("true"), suspend=True)


def spoilt(name: str) -> Manifest:
    manifest = held(name)
    manifest["spec"]["nprocPerNode"] = "many"
    manifest["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    worker = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["containers"][0]["name"] = "main"
    return manifest


async def test_mistakes_are_refused_together_and_good_jobs_show_their_defaults(
    scenario: Scenario,
) -> None:
    await scenario.submit(spoilt("before"))
    async with checked(scenario, CertificateValidity()):
        with pytest.raises(Invalid) as refused:
            await scenario.submit(spoilt("bad"))
        fields = {cause.field for cause in refused.value.causes}
        assert fields == {
            "spec.nprocPerNode",
            "spec.pytorchReplicaSpecs.Master.replicas",
            "spec.pytorchReplicaSpecs.Worker.template.spec.containers",
        }
        labelled = {"metadata": {"labels": {"team": "a"}}}
        await scenario.client.patch(PYTORCH_JOBS, "before", labelled, scenario.namespace)
        good = job("good", replica("true"), replica("true"))
        del good["spec"]["runPolicy"]
        for role in good["spec"]["pytorchReplicaSpecs"].values():
            del role["replicas"], role["restartPolicy"]
        await scenario.submit(good)
        assert await scenario.outcome("good") == "Succeeded"
        spec = (await scenario.job("good")).spec
        assert spec.run_policy.clean_pod_policy == "None"
        assert {
            (role.replicas, role.restart_policy) for role in spec.pytorch_replica_specs.values()
        } == {(1, "OnFailure")}
        await scenario.client.patch(PYTORCH_JOBS, "good", labelled, scenario.namespace)
        for _ in range(2):
            applied = await scenario.client.apply(
                PYTORCH_JOBS, held("applied"), scenario.namespace, manager="somebody"
            )
        assert applied.metadata.generation == 1

    async def free() -> bool:
        """The removal of a webhook takes effect after a delay too."""
        try:
            await scenario.submit(spoilt("after"))
        except ApiError:
            return False
        return True

    await eventually(free, "the API server asks nobody")
