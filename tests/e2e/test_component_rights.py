"""After all scenarios: no call of a component was refused, and every right of it was used."""

import fnmatch

import pytest

from e2e import component_rights
from e2e.clusters import ClusterUnderTest
from e2e.component_rights import Right

ADMISSION = "admission asks for it where OwnerReferencesPermissionEnforcement is on"
GRANTED_ON = "Kubernetes lets the operator grant only rights that it has itself"
CONFLICT = "the object exists when the operator creates it: whose is it?"
ADOPTION = "pods and services that an upstream operator made, or that lost their owner"
CHANGED = "the object was made from other data, by another release or before an edit of the job"
MIGRATION = "a finalizer that an upstream operator left on the job"
AUTOSCALER = "PyTorchJobs with elasticPolicy.metrics; tests/integration/operator runs them"
VOLUMES = "volumes that wait for a node; tests/integration/scheduler runs them"
NEWER = "the API server is too old for the kind"
REPEATED = "an event of equal text is counted up; it depends on time which scenario has one"
STANDBY = "one scheduler runs here, without leader election"

CLAIMS = "claims of a runtime's volumeClaimPolicies"
TTL = "jobs with a time to live; other kinds have such scenarios here"

JOBS = (
    "kubeflow.org",
    "mindspore.gitee.com",
    "batch.paddlepaddle.org",
    "elastic.iml.github.io",
    "trainer.kubeflow.org",
)

UNUSED: dict[str, dict[Right, str]] = {
    "operator": {
        ("*", "*/finalizers", "update"): ADMISSION,
        ("", "pods/exec", "*"): GRANTED_ON,
        ("", "configmaps", "update"): GRANTED_ON,
        **{(group, "*", "get"): ADOPTION for group in JOBS},
        **{(group, "*", "patch"): MIGRATION for group in JOBS},
        ("", "[!e]*", "get"): CONFLICT,
        ("rbac.authorization.k8s.io", "*", "get"): CONFLICT,
        ("scheduling.volcano.sh", "podgroups", "get"): CONFLICT,
        ("", "pods", "patch"): ADOPTION,
        ("", "services", "patch"): ADOPTION,
        ("", "serviceaccounts", "patch"): CHANGED,
        ("", "configmaps", "patch"): CHANGED,
        ("rbac.authorization.k8s.io", "*", "patch"): CHANGED,
        ("autoscaling", "*", "*"): AUTOSCALER,
        ("", "persistentvolumeclaims", "*"): CLAIMS,
        ("trainer.kubeflow.org", "trainjobs", "delete"): TTL,
    },
    "scheduler": {
        ("", "persistentvolume*", "*"): VOLUMES,
        ("", "events", "patch"): REPEATED,
        ("coordination.k8s.io", "leases", "*"): STANDBY,
        ("policy", "*", "watch"): NEWER,
        ("resource.k8s.io", "*", "*"): NEWER,
        ("scheduling.k8s.io", "podgroups*", "*"): NEWER,
        ("storage.k8s.io", "csistoragecapacities", "*"): NEWER,
    },
}
"""Patterns of rights that the scenarios need not use, and why a component has them."""


def is_explained(component: str, right: Right) -> bool:
    """Whether a right that no scenario used is one of those."""
    return any(all(map(fnmatch.fnmatchcase, right, pattern)) for pattern in UNUSED[component])


@pytest.mark.last
@pytest.mark.parametrize("component", ["operator", "scheduler"])
def test_no_call_is_refused_and_no_right_is_unused(
    cluster: ClusterUnderTest, component: str, request: pytest.FixtureRequest
) -> None:
    with cluster.audit_log.open() as log:
        usage = component_rights.read_usage(log, component_rights.account_of(component))
    assert usage.lacking == []
    if not request.config.getoption("--all-rights"):
        pytest.skip("--all-rights is for runs of the complete suite")
    unused = component_rights.granted(component) - usage.used
    assert sorted(each for each in unused if not is_explained(component, each)) == []
