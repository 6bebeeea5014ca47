"""The webhook configurations: their content, and when they must be written again."""

import base64
import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline.kube.probes import Address
from gangline.operator.main import all_frameworks
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook import certificate
from gangline.operator.webhook.certificate import issue_certificate
from gangline.operator.webhook.configuration import (
    CONFIGURATION_RESOURCES,
    FILLED_LABELS,
    MUTATING,
    VALIDATING,
    authorities_for,
    authorities_in,
    contains,
    desired_configuration,
    is_filled,
    is_owned,
)
from gangline.operator.webhook.settings import CertificateValidity, FailurePolicy, WebhookSettings

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
KINDS = [framework.kind for framework in all_frameworks(OperatorSettings())]
SETTINGS = WebhookSettings()
VALIDITY = CertificateValidity()
RING = certificate.plan_rotation(None, None, SETTINGS.names, NOW, VALIDITY, frozenset())
LATER = NOW + timedelta(days=1)


def written(**changes: Any) -> dict[str, Any]:
    return desired_configuration(
        VALIDATING, replace(SETTINGS, **changes), KINDS, RING.trusted, 9443
    )


def hook(**changes: Any) -> dict[str, Any]:
    webhook: dict[str, Any] = written(**changes)["webhooks"][0]
    return webhook


def test_all_kinds_are_looked_at_when_they_are_made_or_changed() -> None:
    for resource in CONFIGURATION_RESOURCES:
        (webhook,) = desired_configuration(resource, SETTINGS, KINDS, RING.trusted, 9443)[
            "webhooks"
        ]
        looked_at = {(*rule["apiGroups"], rule["resources"][0]) for rule in webhook["rules"]}
        related = {
            ("elastic.iml.github.io", "scaleplans"),
            ("trainer.kubeflow.org", "trainingruntimes"),
            ("trainer.kubeflow.org", "clustertrainingruntimes"),
        }
        plans = related if resource is VALIDATING else set()
        assert looked_at == {(kind.resource.group, kind.resource.plural) for kind in KINDS} | plans
        for rule in webhook["rules"]:
            assert rule["operations"] == ["CREATE", "UPDATE"]
            scope = "Cluster" if rule["resources"][0].startswith("cluster") else "Namespaced"
            assert rule["scope"] == scope


def test_scale_is_validated_for_each_kind_that_has_it_and_no_other_subresource() -> None:
    scalable = {kind.resource.plural for kind in KINDS if kind.entry.is_scalable}
    assert {"pytorchjobs", "elasticjobs", "jaxjobs"} < scalable
    for resource in CONFIGURATION_RESOURCES:
        (webhook,) = desired_configuration(resource, SETTINGS, KINDS, (), 1)["webhooks"]
        further = {name for rule in webhook["rules"] for name in rule["resources"][1:]}
        assert further == ({f"{name}/scale" for name in scalable if resource is VALIDATING})


def test_failure_policy_is_ignore_by_default() -> None:
    assert hook()["failurePolicy"] == "Ignore"
    assert hook(failure_policy=FailurePolicy.FAIL)["failurePolicy"] == "Fail"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://127.0.0.1:0", "https://127.0.0.1:9443/validate"),
        ("https://10.0.0.5:8443/gangline/", "https://10.0.0.5:8443/gangline/validate"),
        ("https://operator.example.com", "https://operator.example.com/validate"),
        ("https://[fd00::1]:0", "https://[fd00::1]:9443/validate"),
    ],
)
def test_an_operator_outside_of_the_cluster_is_asked_by_its_address(url: str, shown: str) -> None:
    client = hook(url=url, address=Address("", 9443))["clientConfig"]
    assert client["url"] == shown
    assert "service" not in client


def test_some_namespaces_only() -> None:
    assert hook()["namespaceSelector"] == {}
    assert hook(namespaces=("b", "a"))["namespaceSelector"] == {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
        ]
    }


def test_what_is_there_already_is_not_written_again() -> None:
    existing = copy.deepcopy(written())
    existing["metadata"] |= {"uid": "u", "labels": {**existing["metadata"]["labels"], "a": "b"}}
    existing["webhooks"][0] |= {"objectSelector": {"matchLabels": {"a": "b"}}}
    assert contains(existing, written())
    assert is_owned(existing)
    del existing["webhooks"][0]["namespaceSelector"]
    assert contains(existing, written())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"namespaces": ("a",)}, id="namespaces"),
        pytest.param({"url": "https://10.0.0.5"}, id="address"),
        pytest.param({"failure_policy": FailurePolicy.FAIL}, id="policy"),
        pytest.param({"timeout_s": 9}, id="time"),
    ],
)
def test_what_differs_in_either_direction_is_written(changes: dict[str, Any]) -> None:
    assert not contains(written(), written(**changes))
    assert not contains(written(**changes), written())


def test_nothing_and_foreign_things_agree_with_nothing() -> None:
    for existing in (None, {}, {"webhooks": None}, {"webhooks": [1]}, {"webhooks": []}):
        assert not contains(existing, written())
        assert not is_owned(existing or {})
        assert authorities_in(existing) == ()


@pytest.mark.parametrize("bundle", ["", "%", "anVuaw==", None])
def test_unreadable_bundle_contains_no_authorities(bundle: str | None) -> None:
    existing = {"webhooks": [{"clientConfig": {"caBundle": bundle}}]}
    assert authorities_in(existing) == ()
    assert authorities_for(RING, existing, NOW, VALIDITY) == RING.trusted


def test_a_bundle_keeps_others_authorities_while_certificates_are_exchanged() -> None:
    other = issue_certificate(SETTINGS.names, NOW - timedelta(days=1), timedelta(days=9)).authority
    ended = issue_certificate(SETTINGS.names, NOW - timedelta(days=9), timedelta(days=1)).authority
    text = base64.b64encode((other.pem + ended.pem).encode()).decode()
    existing = {"webhooks": [{"clientConfig": {"caBundle": text}}]}
    assert authorities_for(RING, existing, NOW, VALIDITY) == (other, *RING.trusted)
    assert authorities_for(RING, existing, LATER, VALIDITY) == RING.trusted


def test_every_copy_writes_the_same_bundle() -> None:
    due = NOW + timedelta(days=61)
    ring = certificate.plan_rotation(RING, None, SETTINGS.names, due, VALIDITY, frozenset())
    existing = desired_configuration(MUTATING, SETTINGS, KINDS, ring.trusted, 9443)
    assert authorities_for(ring, existing, due, VALIDITY) == ring.trusted
    assert len(ring.trusted) == 2


def test_queue_access_is_reviewed_where_the_administrator_asks_for_it() -> None:
    assert len(written()["webhooks"]) == 1
    access = written(queue_access=True)["webhooks"][1]
    # No subresource: pods/status is written all the time.
    reviewed = {(*rule["apiGroups"], *rule["resources"]) for rule in access["rules"]}
    assert {(*rule["operations"],) for rule in access["rules"]} == {("CREATE", "UPDATE")}
    jobs = {(kind.resource.group, kind.resource.plural) for kind in KINDS}
    groups = {(f"scheduling.{owner}", "podgroups") for owner in ("volcano.sh", "k8s.io")}
    assert reviewed == jobs | groups | {("", "pods")}
    (excluded,) = access["namespaceSelector"]["matchExpressions"]
    assert (excluded["operator"], excluded["values"]) == (
        "NotIn",
        ["gangline-system", "kube-system"],
    )
    assert len(desired_configuration(MUTATING, SETTINGS, KINDS, (), 1)["webhooks"]) == 1


def test_a_configuration_of_an_installer_is_filled_in() -> None:
    assert is_filled({"metadata": {"labels": {**FILLED_LABELS, "a": "b"}}})
    for other in (None, {}, {"metadata": {"labels": {"gangline.dev/webhook": "x"}}}, written()):
        assert not is_filled(other)
