"""ValidatingAdmissionPolicies and their bindings."""

import json
from pathlib import Path
from typing import Any

import pytest

from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from gangline.local.apiserver.audit import AuditSettings
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from gangline.local.apiserver.storage.durable_files import Durability
from integration.apiserver.test_server_protocol import Http, http
from integration.apiserver.test_server_webhooks import MAPS, config_map, create

__all__ = ["http"]

ADMISSION = "admissionregistration.k8s.io/v1"
ROOT = f"/apis/{ADMISSION}"
WRITES_OF_MAPS = {
    "resourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
         "operations": ["CREATE", "UPDATE", "DELETE"]},
    ],
    "excludeResourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
         "operations": ["*"], "resourceNames": ["limits", "exempt"]},
    ],
}  # fmt: skip


async def post(client: ApiClient, kind: str, name: str, spec: Any) -> Any:
    plural = {"Policy": "validatingadmissionpolicies"}.get(
        kind, "validatingadmissionpolicybindings"
    )
    body = {
        "apiVersion": ADMISSION, "kind": f"ValidatingAdmission{kind}",
        "metadata": {"name": name}, "spec": spec,
    }  # fmt: skip
    return await client.request_json("POST", f"{ROOT}/{plural}", body=body)


async def configure(
    client: ApiClient, actions: list[str], binding: Any = None, **spec: Any
) -> None:
    await post(client, "Policy", "p", {"matchConstraints": WRITES_OF_MAPS, **spec})
    bound = {"policyName": "p", "validationActions": actions, **(binding or {})}
    await post(client, "PolicyBinding", "b", bound)


async def refusal(client: ApiClient, name: str = "a", **meta: Any) -> Any:
    with pytest.raises(errors.ApiError) as refused:
        await create(client, name, **meta)
    return refused.value.status


async def test_a_policy_denies_what_its_expressions_forbid_with_their_message(client: ApiClient):
    await configure(
        client,
        ["Deny"],
        variables=[
            {"name": "unused", "expression": "object.absent.field"},
            {"name": "team", "expression": "object.metadata.?labels.team.orValue('')"},
        ],
        matchConditions=[{"name": "not-other", "expression": "object.metadata.name != 'other'"}],
        validations=[
            {"expression": "variables.team in ['x', 'y']", "reason": "Forbidden",
             "messageExpression":
                "'team ' + variables.team + ' in ' + namespaceObject.metadata.name"},
            {"expression": "request.operation == 'CREATE' || oldObject != null"},
        ],
    )  # fmt: skip
    status = await refusal(client, labels={"team": "z"})
    text = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: team z in default"
    assert (status.code, status.reason) == (403, "Forbidden")
    assert status.message == f'configmaps "a" is forbidden: {text}'
    assert status.details.causes[0].message == text
    for name, meta in (("a", {"labels": {"team": "x"}}), ("other", {}), ("exempt", {})):
        await create(client, name, **meta)
    gone = await client.request_json("DELETE", f"{ROOT}/validatingadmissionpolicybindings/b")
    assert gone["status"] == "Success"
    await create(client, "later")


async def test_a_policy_is_evaluated_for_updates_and_deletions(client: ApiClient):
    rules = [{"expression": "request.operation == 'DELETE' ? oldObject.data.x == '2' : true"},
             {"expression": "request.operation != 'UPDATE' || object.data.x >= oldObject.data.x",
              "message": "x only grows"}]  # fmt: skip
    await configure(client, ["Deny"], validations=rules)
    await create(client)
    with pytest.raises(errors.ApiError, match="failed expression: request"):
        await client.request_json("DELETE", f"{MAPS}/a")
    with pytest.raises(errors.ApiError, match="x only grows"):
        await client.request_json("PUT", f"{MAPS}/a", body=config_map() | {"data": {"x": "0"}})
    await client.request_json("PUT", f"{MAPS}/a", body=config_map() | {"data": {"x": "2"}})
    await client.request_json("DELETE", f"{MAPS}/a")


async def test_parameters_are_read_for_each_write(client: ApiClient):
    reference = {"name": "limits", "parameterNotFoundAction": "Deny"}
    await configure(
        client, ["Deny"], {"paramRef": reference},
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
        validations=[{"expression": "object.metadata.name.startsWith(params.data.x)"}],
    )  # fmt: skip
    assert "no params found" in (await refusal(client)).message
    await create(client, "limits")
    assert (await refusal(client)).code == 422
    await create(client, "1a")


async def test_errors_of_expressions_follow_the_failure_policy(client: ApiClient):
    broken = [{"expression": "object.absent == 1"}]
    await configure(client, ["Deny"], failurePolicy="Ignore", validations=broken)
    await create(client, "ignored")
    await post(client, "Policy", "q", {"matchConstraints": WRITES_OF_MAPS, "validations": broken})
    await post(client, "PolicyBinding", "c", {"policyName": "q", "validationActions": ["Deny"]})
    assert "resulted in error: NOT_FOUND" in (await refusal(client)).message


async def test_warnings_do_not_refuse(http: Http, client: ApiClient):
    await configure(client, ["Warn", "Audit"], validations=[{"expression": "false"}])
    assert (await http("POST", MAPS, config_map()))[0] == 201
    assert "Validation failed for ValidatingAdmissionPolicy 'p'" in http.headers["Warning"]


async def test_audited_failures_and_annotations_are_in_the_event(tmp_path: Path):
    log = tmp_path / "audit.log"
    server = ApiServer(
        ApiServerSettings(
            data=tmp_path / "data", durability=Durability.PROCESS, audit=AuditSettings(log)
        )
    )
    await server.start()
    try:
        async with ApiClient(server.config) as client:
            note = {"key": "size", "valueExpression": "string(size(object.data))"}
            rules = [{"expression": "true"}, {"expression": "false", "message": "never"}]
            await configure(client, ["Audit"], validations=rules, auditAnnotations=[note])
            await create(client)
    finally:
        await server.stop()
    events = map(json.loads, log.read_text().splitlines())
    (notes,) = [event["annotations"] for event in events
                if event["verb"] == "create" and event["objectRef"]["resource"] == "configmaps"
                and "p/size" in event["annotations"]]  # fmt: skip
    assert notes["p/size"] == "1"
    assert json.loads(notes["validation.policy.admission.k8s.io/validation_failure"]) == [
        {"message": "never", "policy": "p", "binding": "b", "expressionIndex": 1,
         "validationActions": ["Audit"]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"validations": [{"expression": "object."}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "authorizer.path('/x').check('get').allowed()"}]},
         "spec.validations[0].expression"),
        ({"validations": [{"expression": "self.a"}]}, "spec.validations[0].expression"),
        ({"variables": [{"name": "v", "expression": "1 +"}]}, "spec.variables[0].expression"),
        ({"auditAnnotations": [{"key": "k", "valueExpression": "("}]},
         "spec.auditAnnotations[0].valueExpression"),
    ],
)  # fmt: skip
async def test_expressions_that_do_not_compile_are_refused_by_name(
    client: ApiClient, spec: Any, field: str
):
    valid = {"validations": [{"expression": "true"}], "matchConstraints": WRITES_OF_MAPS}
    with pytest.raises(errors.ApiError) as refused:
        await post(client, "Policy", "p", valid | spec)
    assert [cause.field for cause in refused.value.status.details.causes] == [field]
