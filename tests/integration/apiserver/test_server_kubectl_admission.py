"""kubectl with webhook configurations and autoscalers."""

import re
from pathlib import Path

from integration.apiserver.conftest import Kubectl
from integration.apiserver.webhook_server import Json, WebhookServer, add_label, deny

CONFIGURATION = """
apiVersion: admissionregistration.k8s.io/v1
kind: {kind}
metadata:
  name: {name}
webhooks:
  - name: {name}.hooks.example.com
    clientConfig: {{url: "https://127.0.0.1:{port}/{name}", caBundle: {bundle}}}
    rules:
      - operations: [CREATE, UPDATE]
        apiGroups: [""]
        apiVersions: [v1]
        resources: [configmaps]
        scope: "*"
    sideEffects: None
    admissionReviewVersions: [v1, v1beta1]
    failurePolicy: Fail
"""


def refuse_bad_names(request: Json) -> Json:
    if "bad" in request["name"]:
        return {**deny(request, message="no bad names", code=403, reason="Forbidden"),
                "warnings": ["think again"]}  # fmt: skip
    return {"uid": request["uid"], "allowed": True, "warnings": ["be careful"]}


async def test_kubectl_applies_webhooks_and_shows_what_they_say(kubectl: Kubectl, tmp_path: Path):
    answers = {"checks": refuse_bad_names, "labels": add_label("hooked", "yes")}
    async with WebhookServer(tmp_path / "hooks", answers=answers) as hooks:
        for name, kind in (("checks", "Validating"), ("labels", "Mutating")):
            text = CONFIGURATION.format(
                kind=f"{kind}WebhookConfiguration", name=name, port=hooks.port, bundle=hooks.bundle
            )
            assert "created" in await kubectl("apply -f -", text=text)
            assert "unchanged" in await kubectl("apply -f -", text=text)
            shown = await kubectl(f"get {kind.lower()}webhookconfigurations")
            assert re.search(rf"^NAME +WEBHOOKS +AGE\n{name} +1 ", shown, re.MULTILINE)
        output = await kubectl("create configmap good --from-literal=a=b")
        assert "created" in output
        assert "Warning: be careful" in output
        assert "hooked=yes" in await kubectl("get configmap good --show-labels")
        code, output = await kubectl.run("create", "configmap", "bad")
        assert code != 0
        assert (
            'admission webhook "checks.hooks.example.com" denied the request: no bad names'
            in output
        )
        await kubectl("label configmap good more=x")
        assert "more=x" in await kubectl("get configmap good --show-labels")
    code, output = await kubectl.run("create", "configmap", "late")
    assert code != 0
    assert "failed calling webhook" in output
    await kubectl("delete validatingwebhookconfiguration checks")
    await kubectl("delete mutatingwebhookconfiguration labels")
    await kubectl("create configmap late")
    assert "failurePolicy" in await kubectl(
        "explain validatingwebhookconfigurations.webhooks.failurePolicy"
    )
