"""What a user's template has stays, in jobs of every kind; the API server accepts what is built."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.validation.jobs import rules_of
from gangline.api.validation.validate import check_manifest
from gangline.operator.engine.manifests import build_pod, build_service
from gangline.operator.engine.slots import assign_slots
from gangline.operator.model.plan import ObservedJob
from gangline.operator.policies.replica_tracker import tracker_of
from security.fuzz.jobs import admit
from unit.operator.builders import SETTINGS, stored
from unit.operator.kinds import KINDS, KindUnderTest

Json = dict[str, Any]
_WITH_TEMPLATES = [kind for kind in KINDS.values() if kind.framework.kind.kind != "TrainJob"]
each_kind = pytest.mark.parametrize("kind", _WITH_TEMPLATES, ids=lambda kind: kind.name)


def templates_of(kind: KindUnderTest, job: Json) -> list[Json]:
    roles = job["spec"][kind.specs] if kind.specs else job["spec"]
    return [role["template"] for role in roles.values() if isinstance(role, dict) if role]


def a_job(kind: KindUnderTest, change: Callable[[Json], None]) -> Json:
    """A job with two workers whose pod specs are changed."""
    job = json.loads(json.dumps(kind.job(2)))
    if not job["spec"]["runPolicy"]:
        del job["spec"]["runPolicy"]
    for template in templates_of(kind, job):
        change(template["spec"])
    return job


def build(kind: KindUnderTest, written: Json) -> Iterator[tuple[Json, Json | None]]:
    """Build the pod and the service of the first replica of each role that has a template."""
    parsed = kind.framework.read(stored(written))
    assert not parsed.spec_errors
    job = tracker_of(parsed.job).restore_from_status(parsed.job, JobStatus())
    gang = assign_slots(ObservedJob(job, JobStatus()), JobStatus())
    written_roles = written["spec"][kind.specs] if kind.specs else written["spec"]
    for role in job.roles:
        if role.name not in written_roles:
            continue
        pod = build_pod(job, role, 0, SETTINGS, gang, 0)
        service = build_service(job, role, 0)
        yield pod.manifest, service.manifest if service else None


def assert_accepted(written: Json | None) -> None:
    if written is not None:
        admit(json.loads(json.dumps(written)))


@each_kind
@pytest.mark.parametrize("host_network", [False, True], ids=["pod network", "host network"])
@pytest.mark.parametrize(
    "ports",
    [
        pytest.param([{}], id="without a name"),
        pytest.param([{"name": "rendezvous"}], id="of another name"),
        pytest.param([{"protocol": "UDP"}, {"name": "port-7"}], id="in two protocols"),
    ],
)
def test_a_declared_port_is_used_under_any_name(
    kind: KindUnderTest, ports: list[Json], *, host_network: bool
) -> None:
    number = kind.framework.kind.port or 5000
    declared = [{"containerPort": number, **port} for port in ports]

    def change(spec: Json) -> None:
        spec |= {"hostNetwork": True} if host_network else {}
        spec["containers"][0]["ports"] = declared

    for pod, service in build(kind, a_job(kind, change)):
        assert_accepted(pod)
        assert_accepted(service)
        listed = pod["spec"]["containers"][0]["ports"]
        same = [p for p in listed if (p["containerPort"], p.get("protocol")) == (number, None)]
        assert len(same) <= 1, listed


@each_kind
def test_a_port_of_a_sidecar_is_not_declared_again(kind: KindUnderTest) -> None:
    number = kind.framework.kind.port or 5000
    sidecar = {"name": "sidecar", "image": "x", "ports": [{"containerPort": number}]}

    def change(spec: Json) -> None:
        spec |= {"hostNetwork": True, "containers": [*spec["containers"], sidecar]}

    for pod, service in build(kind, a_job(kind, change)):
        assert_accepted(pod)
        assert_accepted(service)


@each_kind
def test_a_variable_keeps_its_value_or_is_warned_of(kind: KindUnderTest) -> None:
    """All variables that the operator sets anywhere in the job are given by the user."""
    plain = a_job(kind, lambda spec: None)
    ours = {
        variable["name"]
        for pod, _ in build(kind, plain)
        for variable in pod["spec"]["containers"][0].get("env", [])
    }
    own = [{"name": name, "value": "mine"} for name in sorted(ours)]
    written = a_job(kind, lambda spec: spec["containers"][0].update(env=own))
    warned = {str(warning.value) for warning in check_manifest(written).warnings}
    assert rules_of(kind.framework.kind.entry).OPERATOR_VARIABLES & ours <= warned
    for pod, _ in build(kind, written):
        env = pod["spec"]["containers"][0]["env"]
        names = [variable["name"] for variable in env]
        assert len(names) == len(set(names))
        replaced = {variable["name"] for variable in env if variable.get("value") != "mine"}
        assert replaced <= warned, replaced - warned


@each_kind
def test_a_label_keeps_its_value_or_is_warned_of(kind: KindUnderTest) -> None:
    """All labels that the operator sets anywhere in the job are given by the user."""
    written = a_job(kind, lambda spec: None)
    ours = {key for pod, _ in build(kind, written) for key in pod["metadata"]["labels"]}
    for template in templates_of(kind, written):
        template["metadata"] = {"labels": dict.fromkeys(ours, "mine")}
    warned = {warning.path for warning in check_manifest(written).warnings}
    for pod, service in build(kind, written):
        assert_accepted(service)
        changed = [key for key, value in pod["metadata"]["labels"].items() if value != "mine"]
        assert not [key for key in changed if not any(key in path for path in warned)]


@each_kind
def test_volumes_and_mounts_stay(kind: KindUnderTest) -> None:
    """The user's volumes have the names of all volumes that the operator adds."""
    job = a_job(kind, lambda spec: None)
    job["metadata"]["annotations"] = {"gangline.dev/shared-memory": "true"}
    added = {
        volume["name"] for pod, _ in build(kind, job) for volume in pod["spec"].get("volumes", [])
    }
    assert added
    own = [{"name": name, "emptyDir": {}} for name in sorted(added)]
    mounts = [{"name": name, "mountPath": f"/mine/{name}"} for name in sorted(added)]

    def change(spec: Json) -> None:
        spec["volumes"] = own
        spec["containers"][0]["volumeMounts"] = mounts

    written = a_job(kind, change)
    written["metadata"]["annotations"] = job["metadata"]["annotations"]
    for pod, _ in build(kind, written):
        assert_accepted(pod)
        assert pod["spec"]["volumes"][: len(own)] == own
        assert pod["spec"]["containers"][0]["volumeMounts"][: len(mounts)] == mounts
