"""What the engine adds to the pod templates of users, and what it leaves as it is."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.jobs.progress import CA_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE
from gangline.api.validation.jobs import rules_of
from gangline.api.validation.validate import check_manifest
from gangline.operator.engine.manifests import build_pod, build_service, with_progress_endpoint
from gangline.operator.engine.slots import assign_slots
from gangline.operator.engine.status import decode_status, encode_status, kind_fields
from gangline.operator.model.plan import ObservedJob
from gangline.operator.policies.replica_tracker import tracker_of
from security.fuzz.jobs import admit
from unit.operator.builders import SETTINGS, read, stored
from unit.operator.builders import manifest as pytorch_job
from unit.operator.elastic_jobs import ElasticWorld, role
from unit.operator.kinds import KINDS, KindUnderTest

NOTE = "gangline.dev/shared-memory"


def memory_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The volumes that the main container mounts at /dev/shm."""
    mounts = pod["spec"]["containers"][0].get("volumeMounts", [])
    names = {mount["name"] for mount in mounts if mount["mountPath"] == "/dev/shm"}
    return [volume for volume in pod["spec"].get("volumes", []) if volume["name"] in names]


def pods_of(world: ElasticWorld) -> dict[str, dict[str, Any]]:
    return world.made(world.decide())


def test_pods_that_train_get_memory_and_the_master_does_not() -> None:
    pods = pods_of(ElasticWorld(1, strategy="ParameterServerStrategy", roles={"ps": 1}))
    for name, pod in pods.items():
        directories = [volume["emptyDir"] for volume in memory_of(pod)]
        assert directories == ([] if name == "master-0" else [{"medium": "Memory"}]), name


@pytest.mark.parametrize(
    ("note", "directories"),
    [("false", []), ("true", [{"medium": "Memory"}]),
     ("8Gi", [{"medium": "Memory", "sizeLimit": "8Gi"}])],
)  # fmt: skip
def test_annotation_sets_whether_and_how_much(note: str, directories: list) -> None:
    pods = pods_of(ElasticWorld(1, annotations={NOTE: note}))
    assert [volume["emptyDir"] for volume in memory_of(pods["worker-0"])] == directories


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/", "/dev"])
def test_what_is_mounted_there_stays(path: str) -> None:
    worker = role(1, pod={"volumes": [{"name": "own", "emptyDir": {}}]})
    mount = {"name": "own", "mountPath": path}
    worker["template"]["spec"]["containers"][0]["volumeMounts"] = [mount]
    spec = pods_of(ElasticWorld(worker))["worker-0"]["spec"]
    assert spec["volumes"] == [{"name": "own", "emptyDir": {}}]
    assert spec["containers"][0]["volumeMounts"] == [mount]


def test_the_nodes_own_is_left_alone() -> None:
    assert memory_of(pods_of(ElasticWorld(role(1, pod={"hostIPC": True})))["worker-0"]) == []


FOLDER = "/var/run/secrets/kubeflow/trainer"
SERVER = "https://gangline-operator.gangline-system.svc"


def reporting(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """The specification of a pod of a PyTorchJob, with the endpoint."""
    given = {"spec": {"containers": list(containers), **spec}}
    written: dict[str, Any] = with_progress_endpoint(read(pytorch_job(1)), given, SERVER)["spec"]
    return written


def test_all_containers_get_the_address_of_their_job_and_its_token() -> None:
    pod = reporting({"name": "pytorch"}, {"name": "other", "env": [{"name": "A", "value": "1"}]})
    path = "kubeflow.org/v1/namespaces/team/pytorchjobs/train/status"
    for container in pod["containers"]:
        values = {variable["name"]: variable["value"] for variable in container["env"]}
        assert values.items() >= {
            (URL_VARIABLE, f"{SERVER}/apis/{path}"),
            (CA_VARIABLE, f"{FOLDER}/ca.crt"),
            (TOKEN_VARIABLE, f"{FOLDER}/token"),
        }
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == [FOLDER]
    token, authorities = pod["volumes"][0]["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == path
    assert authorities["configMap"]["optional"], "training must not wait for the CAs"


def test_what_the_user_has_set_stays() -> None:
    own = {"name": "pytorch", "env": [{"name": URL_VARIABLE, "value": "https://own"}]}
    mounted = {"name": "b", "volumeMounts": [{"name": "own", "mountPath": f"{FOLDER}/"}]}
    volume = {"name": "kubeflow-trainer-token", "emptyDir": {}}
    pod = reporting(own, mounted, {"name": "c"}, volumes=[volume])
    assert pod["containers"][:2] == [own, mounted]
    first, second = pod["volumes"]
    assert first == volume
    assert [m["name"] for m in pod["containers"][2]["volumeMounts"]] == [second["name"]]
    assert first["name"] != second["name"]


def test_without_the_endpoint_pods_are_as_before() -> None:
    given = {"spec": {"containers": [{"name": "pytorch"}]}}
    assert with_progress_endpoint(read(pytorch_job(1)), given, "") == given


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_report_is_kept_when_the_status_is_written(kind: Any) -> None:
    info = kind.framework.kind
    reported = {"progressPercentage": 45, "lastUpdatedTime": "2026-11-05T12:00:00Z"}
    stored = msgspec.Raw(msgspec.json.encode({"trainerStatus": reported}))
    status = decode_status(info, stored)
    assert status.trainer_status is not None
    again = encode_status(info, status, kind_fields(info, stored))
    written = msgspec.to_builtins(again)
    assert written["trainerStatus"] == reported
    assert "trainerStatus" not in written.get(info.status_field, {})


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
    for declared in job.roles:
        if declared.name not in written_roles:
            continue
        pod = build_pod(job, declared, 0, SETTINGS, gang, 0)
        service = build_service(job, declared, 0)
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
