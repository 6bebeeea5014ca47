"""The deployed webhook: with minimal rights, and valid for Go clients."""

import asyncio
import shutil
from pathlib import Path

import pytest

from gangline.api.resources import PYTORCH_JOBS, SECRETS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Invalid
from gangline.local.apiserver.server import ApiServer
from gangline.operator.main import all_frameworks
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook import certificate
from gangline.operator.webhook.component import run_webhook
from gangline.operator.webhook.settings import WebhookSettings
from integration.operator.cluster import NAMESPACE, PATIENCE_S, install
from integration.operator.process import apply, deployed, kubeconfig_of, operator
from integration.operator.webhook import job, until
from unit.operator.builders import manifest

SYSTEM = "gangline-system"


@pytest.mark.slow
async def test_it_works_with_the_rights_that_are_written_down_and_complains_without(
    client: ApiClient, api_server: ApiServer, tmp_path: Path
) -> None:
    await install(client)
    for each in deployed():
        if each["kind"] not in ("Deployment", "Service"):
            await apply(client, each)
    account = f"{SYSTEM}/gangline-operator"
    config = await kubeconfig_of(client, account, api_server.kubeconfig, tmp_path / "kubeconfig")
    flags = (
        "--webhook=on",
        "--webhook-failure-policy=Fail",
        "--webhook-url=https://127.0.0.1:0",
        "--webhook-bind-address=127.0.0.1:0",
        f"--webhook-namespace={SYSTEM}",
    )
    async with operator(config, *flags) as running:
        kind = "secrets"

        async def complains() -> bool:
            return any("docs/operator.md" in line and kind in line for line in running.lines)

        await until(complains, "it says which right is missing")
        assert (await running.page("/healthz"))[0] == 200
        await client.create(PYTORCH_JOBS, job(), NAMESPACE)

        for each in deployed(webhook={"enabled": True}):
            if each["metadata"]["name"] == "gangline-operator-webhook":
                await apply(client, each)
        await running.until_logged("webhook is serving")

        async def refused() -> bool:
            try:
                await client.create(
                    PYTORCH_JOBS, job("bad", spec=manifest(2, 1)["spec"]), NAMESPACE
                )
            except Invalid:
                return True
            await client.delete(PYTORCH_JOBS, "bad", NAMESPACE)
            return False

        await until(refused, "mistakes are refused")
        assert (await running.page("/readyz"))[0] == 200
        found = await running.metric(
            'gangline_webhook_reviews_total{answer="denied",path="/validate"}'
        )
        assert found >= 1
        log = "\n".join(running.lines)
    assert "PRIVATE KEY" not in log


async def test_its_certificate_satisfies_the_rules_of_go(client: ApiClient, tmp_path: Path) -> None:
    """API servers are written in Go, whose rules for certificates are the stricter ones."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("no kubectl on the path")
    settings = WebhookSettings.for_embedded_cluster()
    async with run_webhook(client, settings, all_frameworks(OperatorSettings())) as webhook:
        assert webhook is not None
        async with asyncio.timeout(PATIENCE_S):
            await webhook.controller.registered.wait()
        stored = await client.get(SECRETS, settings.secret, settings.namespace)
        authorities = certificate.parse_certificate_set(stored.data).trusted
        trusted, other = tmp_path / "ca.pem", tmp_path / "other.pem"
        trusted.write_text("".join(each.pem for each in authorities))
        fresh = certificate.plan_rotation(
            None, None, settings.names, authorities[0].issued, settings.validity, frozenset()
        )
        other.write_text(fresh.serving.authority.pem)
        expected = await _asked(program, webhook.server.port, trusted)
        assert "x509" not in expected
        assert "the server does not allow this method" in expected
        assert "x509" in await _asked(program, webhook.server.port, other)


async def _asked(program: str, port: int, authority: Path) -> str:
    """The output of kubectl for a request to the webhook, which accepts only reviews."""
    process = await asyncio.create_subprocess_exec(
        program,
        "--kubeconfig=/dev/null",
        f"--server=https://127.0.0.1:{port}",
        f"--certificate-authority={authority}",
        *("--token=none", "get", "--raw", "/validate"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    expected, _ = await process.communicate()
    return expected.decode()
