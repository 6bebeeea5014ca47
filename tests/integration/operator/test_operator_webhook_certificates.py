"""The webhook's certificate: rotated, lost, damaged, and owned by another program."""

import asyncio
import time
from collections import deque
from datetime import timedelta

import pytest

from gangline.api.core.core import Secret
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import SECRETS
from gangline.kube.client.client import ApiClient
from gangline.operator.webhook import certificate as rotation
from gangline.operator.webhook.configuration import FILLED_LABELS, OWNER_LABELS, VALIDATING
from gangline.operator.webhook.settings import CertificateValidity
from integration.operator.webhook import (
    NAME,
    SETTINGS,
    SYSTEM,
    bundle,
    certificate,
    create,
    job,
    secret,
    until,
    webhook,
)


@pytest.mark.slow
async def test_certificates_are_exchanged_under_load_and_no_call_fails(cluster: ApiClient) -> None:
    """Certificates live for seconds; a call that cannot be made refuses the job, and is seen."""
    validity = CertificateValidity(
        lifetime=timedelta(seconds=30),
        renew_before=timedelta(seconds=29),
        propagation=timedelta(seconds=2),
    )
    shown: set[str] = set()
    async with webhook(cluster, validity=validity, resync_s=0.1) as started:
        count, heard = 0, deque([(time.monotonic(), await bundle(cluster))])
        while len(shown) < 4 or count < 300:
            await asyncio.gather(*(create(cluster, job(f"j{count + n}")) for n in range(10)))
            count += 10
            heard.append((time.monotonic(), await bundle(cluster)))
            # Callers notice changes with a delay: this one is up to a second behind.
            while heard[0][0] < time.monotonic() - 1:
                heard.popleft()
            shown.add(await certificate(started.server.port, heard[0][1]))


async def test_lost_secret_is_recreated_and_no_call_fails(cluster: ApiClient) -> None:
    validity = CertificateValidity(propagation=timedelta(seconds=0.5))
    async with webhook(cluster, validity=validity):
        first = (await secret(cluster)).data[rotation.KEY]
        await cluster.delete(SECRETS, NAME, SYSTEM)
        count = 0

        async def renewed() -> bool:
            nonlocal count
            count += 1
            await create(cluster, job(f"j{count}"))
            found = await cluster.list(SECRETS, SYSTEM, fields=f"metadata.name={NAME}")
            return bool(found.items) and found.items[0].data[rotation.KEY] != first

        await until(renewed, "another certificate is served")


@pytest.mark.parametrize("data", [{}, {"tls.crt": "anVuaw=="}], ids=["empty", "junk"])
async def test_unusable_secret_is_replaced_and_reported(
    cluster: ApiClient, caplog: pytest.LogCaptureFixture, data: dict[str, str]
) -> None:
    meta = ObjectMeta(name=NAME, namespace=SYSTEM, labels=dict(OWNER_LABELS))
    await cluster.create(SECRETS, Secret(metadata=meta, data=data), SYSTEM)
    async with webhook(cluster):
        await create(cluster, job())
    assert ("cannot be used" in caplog.text) == bool(data)
    assert rotation.parse_certificate_set((await secret(cluster)).data)


async def test_secret_of_another_owner_is_not_changed(
    cluster: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    meta = ObjectMeta(name=NAME, namespace=SYSTEM)
    theirs = await cluster.create(SECRETS, Secret(metadata=meta, data={"a": "Yg=="}), SYSTEM)
    async with webhook(cluster):
        await create(cluster, job())
    assert await secret(cluster) == theirs
    assert rotation.parse_certificate_set((await secret(cluster, f"{NAME}-own")).data)
    assert caplog.text.count("--webhook-secret") == 1


async def test_the_secret_belongs_to_what_an_installer_made(cluster: ApiClient) -> None:
    metadata = {"name": SETTINGS.configuration, "labels": dict(FILLED_LABELS)}
    installed = await cluster.create(VALIDATING, {"metadata": metadata})
    async with webhook(cluster):
        (owner,) = (await cluster.get(SECRETS, NAME, SYSTEM)).metadata.owner_references
        assert (owner.kind, owner.name) == (VALIDATING.kind, SETTINGS.configuration)
        assert owner.uid == installed["metadata"]["uid"]
        assert owner.api_version == "admissionregistration.k8s.io/v1"
        # Another release made it anew: the Secret stays, and ends with this one.
        await cluster.delete(VALIDATING, SETTINGS.configuration)
        again = await cluster.create(VALIDATING, {"metadata": metadata})

        async def follows() -> bool:
            (owner,) = (await cluster.get(SECRETS, NAME, SYSTEM)).metadata.owner_references
            return owner.uid == again["metadata"]["uid"]

        await until(follows, "the new configuration owns it")
