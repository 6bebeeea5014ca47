"""After all scenarios: no call of a component was refused, and every right of it was used."""

import pytest

from e2e import component_rights
from e2e.clusters import ClusterUnderTest

ADMISSION_ONLY = "admission asks for it where OwnerReferencesPermissionEnforcement is on"
GRANTED_ON = "Kubernetes lets the operator grant only rights that it has itself"

UNUSED = {
    "operator": {
        ("kubeflow.org", "pytorchjobs/finalizers", "update"): ADMISSION_ONLY,
        ("kubeflow.org", "tfjobs/finalizers", "update"): ADMISSION_ONLY,
        ("kubeflow.org", "jaxjobs/finalizers", "update"): ADMISSION_ONLY,
        ("kubeflow.org", "xgboostjobs/finalizers", "update"): ADMISSION_ONLY,
        ("kubeflow.org", "mpijobs/finalizers", "update"): ADMISSION_ONLY,
        ("mindspore.gitee.com", "msjobs/finalizers", "update"): ADMISSION_ONLY,
        ("batch.paddlepaddle.org", "paddlejobs/finalizers", "update"): ADMISSION_ONLY,
        ("elastic.iml.github.io", "elasticjobs/finalizers", "update"): ADMISSION_ONLY,
        ("", "pods/exec", "create"): GRANTED_ON,
        ("", "pods/exec", "get"): GRANTED_ON,
        ("", "configmaps", "update"): GRANTED_ON,
    },
    "scheduler": {},
}
"""Rights that no call needs, and why a component has them."""


@pytest.mark.last
@pytest.mark.parametrize("component", ["operator", "scheduler"])
def test_no_call_is_refused_and_no_right_is_unused(
    cluster: ClusterUnderTest, component: str, request: pytest.FixtureRequest
) -> None:
    with cluster.audit_log.open() as log:
        usage = component_rights.read_usage(log, component_rights.account_of(component))
    assert usage.refused == []
    if not request.config.getoption("--all-rights"):
        pytest.skip("--all-rights is for runs of the complete suite")
    unused = component_rights.granted(component) - usage.used - UNUSED[component].keys()
    assert sorted(unused) == []
