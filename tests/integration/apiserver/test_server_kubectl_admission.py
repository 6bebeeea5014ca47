"""kubectl with webhook configurations and autoscalers."""

import re
from pathlib import Path

import yaml

from integration.apiserver.conftest import Kubectl
from integration.apiserver.webhook_server import Json, WebhookServer, add_label, deny, rule

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


async def test_all_errors_of_a_configuration_are_reported_together(kubectl: Kubectl):
    body = yaml.safe_load(
        CONFIGURATION.format(kind="ValidatingWebhookConfiguration", name="x", port=1, bundle='""')
    )
    body["webhooks"][0] |= {
        "name": "x", "timeoutSeconds": 99, "clientConfig": {"url": "http://a"},
        "rules": [rule("pods", scope="There")],
    }  # fmt: skip
    code, output = await kubectl.run("create", "-f", "-", text=yaml.safe_dump(body))
    assert code != 0
    for texts in ("three segments", "between 1 and 30", "'https' is the only", "Unsupported value"):
        assert texts in output


async def test_autoscalers_are_applied_shown_and_described(kubectl: Kubectl):
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 2,
            "maxReplicas": 5,
            "metrics": [
                {"type": "Resource", "resource": {"name": "memory", "target": {
                    "type": "AverageValue", "averageValue": "100Mi"}}},
                {"type": "Resource", "resource": {"name": "cpu", "target": {
                    "type": "Utilization", "averageUtilization": 60}}},
            ],
        },
    }  # fmt: skip
    if not kubectl.is_old:  # which has never heard of this version, but reads the older one
        assert "created" in await kubectl("apply -f -", text=yaml.safe_dump(scaler))
    else:
        await kubectl("create --validate=false -f -", text=yaml.safe_dump(scaler))
    shown = await kubectl("get hpa")
    assert re.search(r"^web +Deployment/web +memory: <unknown>/100Mi, cpu: <unknown>/60% +2 +5 +0",
                     shown, re.MULTILINE)  # fmt: skip
    shown = await kubectl("get horizontalpodautoscalers.v1.autoscaling web -o yaml")
    assert "targetCPUUtilizationPercentage: 60" in shown
    assert "Reference" in await kubectl("describe hpa web")
    # Written back as v1, the object still has its other metric.
    await kubectl("replace -f -", text=shown)
    again = await kubectl("get horizontalpodautoscalers.v2.autoscaling web -o yaml")
    assert "averageValue: 100Mi" in again
    assert "averageUtilization: 60" in again
    await kubectl("delete hpa web")
