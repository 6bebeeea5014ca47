"""Conversion of API objects to scheduler values."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gangline.api.core.node import Node
from gangline.api.core.pod import Pod
from gangline.api.volcano.scheduling import GROUP_NAME_ANNOTATION, PodGroup, Queue
from gangline.kube.client.decoding import decode_object, decode_page
from gangline.local.kubelet.pods.admission import admit_pod
from gangline.scheduler import wire
from gangline.scheduler.cache import convert
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import attach_limits
from gangline.scheduler.types import (
    HOST_PORT_CAPACITY,
    GroupKey,
    LabelExpression,
    NodeInfo,
    NodeName,
    NodeTerm,
    PodInfo,
    PodKey,
    QueueInfo,
    TaintInfo,
    TolerationInfo,
)
from gangline.scheduler.wire import (
    PREEMPTABLE_KEY,
    ROLE_KEY,
    LeanPod,
    LeanPodSpec,
    slim_pod,
)
from unit.scheduler import builders
from unit.scheduler.builders import checked_cycle, cluster, group, node

OURS = frozenset({"gangline"})
JOB = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}


def pod(**fields: Any) -> PodInfo:
    spec = {"schedulerName": "gangline", "containers": [{}]} | fields.pop("spec", {})
    metadata = {"name": "p", "namespace": "d", "uid": "u"} | fields.pop("metadata", {})
    raw = {"metadata": metadata, "spec": spec, **fields}
    return convert.pod_info(slim_pod(msgspec.convert(raw, LeanPod)), {"": 1, "high": 9}, OURS)


def asking(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": requests}}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        pytest.param({"containers": [asking(cpu="1"), asking(cpu="500m")]}, 1500, id="sum"),
        pytest.param({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, 2000, id="limit"),
        pytest.param(
            {"containers": [asking(cpu="1")], "initContainers": [asking(cpu="3")]},
            3000,
            id="a large init container",
        ),
        pytest.param(
            {
                "containers": [asking(cpu="1")],
                "initContainers": [{**asking(cpu="1"), "restartPolicy": "Always"}],
            },
            2000,
            id="a sidecar runs beside",
        ),
        pytest.param(
            {"containers": [asking(cpu="1")], "overhead": {"cpu": "100m"}}, 1100, id="overhead"
        ),
    ],
)
def test_pod_request_is_counted_as_in_kubernetes(spec: dict[str, Any], cpu: int) -> None:
    request = dict(pod(spec=spec).shape.request)
    assert request["cpu"] == cpu
    assert request["pods"] == 1


def test_equal_pods_have_one_shape() -> None:
    spec = {"containers": [asking(cpu="1")], "nodeSelector": {"a": "b"}}
    assert pod(spec=spec).shape is pod(spec=spec, metadata={"name": "q"}).shape


def test_group_and_role_come_from_annotations_or_labels() -> None:
    annotations = {"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": "ps", "x": "y"}
    facts = pod(metadata={"annotations": annotations})
    assert (facts.group, facts.role) == ("d/g", "ps")
    assert pod(metadata={"labels": {"volcano.sh/task-spec": "w"}}).role == "w"


@pytest.mark.parametrize(
    ("spec", "priority"),
    [({"priority": 5}, 5), ({"priorityClassName": "high"}, 9), ({}, 1)],
    ids=["number", "class", "global default"],
)
def test_priority_is_the_number_or_the_classs(spec: dict[str, Any], priority: int) -> None:
    assert pod(spec=spec).priority == priority


def test_only_pods_of_our_schedulers_wait_for_us() -> None:
    assert pod().is_pending
    assert not pod(spec={"schedulerName": "other"}).is_pending
    assert not pod(spec={"schedulerName": ""}).is_pending
    assert not pod(spec={"nodeName": "n"}).is_pending
    assert not pod(spec={"schedulingGates": [{"name": "g"}]}).is_pending
    assert not pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}).is_pending
    assert not pod(status={"phase": "Failed"}).is_pending


def test_ended_pod_holds_no_resources() -> None:
    assert pod(spec={"nodeName": "n"}, status={"phase": "Running"}).holds_resources
    assert not pod(spec={"nodeName": "n"}, status={"phase": "Failed"}).holds_resources


def test_wishes_about_nodes_are_read() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "preference": term}],
        }
    }
    tolerations = [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    constraints = pod(spec={"affinity": affinity, "tolerations": tolerations}).shape.constraints
    read = NodeTerm(labels=(LabelExpression("zone", "In", ("a",)),))
    assert constraints.required == (read,)
    assert constraints.preferred == ((3, read),)
    assert constraints.tolerations == (TolerationInfo("gpu", "Exists", "", "NoSchedule"),)


def test_node_is_converted() -> None:
    raw = {
        "metadata": {"name": "n", "labels": {"b": "2", "a": "1"}},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "3500m", "memory": "1Gi", "nvidia.com/gpu": "2"},
            "conditions": [{"type": "Ready", "status": "Unknown"}],
        },
    }
    facts = convert.node_info(msgspec.convert(raw, Node))
    assert dict(facts.allocatable) == {"cpu": 3500, "memory": 2**30, "nvidia.com/gpu": 2}
    assert facts.labels == (("a", "1"), ("b", "2"))
    assert facts.taints == (TaintInfo("k", "", "NoSchedule"),)
    assert facts.unschedulable
    assert not facts.ready


def test_a_group_has_the_default_queue_and_the_priority_of_its_class() -> None:
    raw = {
        "metadata": {"name": "g", "namespace": "d"},
        "spec": {"minMember": 3, "minTaskMember": {"ps": 1}, "priorityClassName": "high"},
    }
    facts = convert.group_info(msgspec.convert(raw, PodGroup), {"high": 9})
    assert (facts.key, facts.min_member, facts.queue, facts.priority) == ("d/g", 3, "default", 9)
    assert (facts.min_task_member, facts.priority_class) == ((("ps", 1),), "high")


def test_minimums_of_roles_that_exceed_that_of_the_gang_are_ignored() -> None:
    raw = {"metadata": {"name": "g"}, "spec": {"minMember": 4, "minTaskMember": {"w": 6}}}
    assert convert.group_info(msgspec.convert(raw, PodGroup), {}).min_task_member == ()


@pytest.mark.parametrize(
    ("state", "is_open"), [("", True), ("Open", True), ("Closing", False), ("Closed", False)]
)
def test_queue_is_open_by_default(state: str, is_open: bool) -> None:
    raw = {"metadata": {"name": "q"}, "status": {"state": state}}
    assert convert.queue_info(msgspec.convert(raw, Queue)).open is is_open


def test_a_pod_takes_ports_of_its_node() -> None:
    ports = [{"hostPort": 80, "containerPort": 80}, {"containerPort": 81}]
    request = dict(pod(spec={"containers": [{"ports": ports}]}).shape.request)
    assert request == {"hostport:tcp:80": HOST_PORT_CAPACITY, "pods": 1}


def with_ports(*containers: str, init: str = "", restart: str = "") -> dict[str, Any]:
    """Return a specification with containers that each take one port, written ADDRESS:PORT/UDP."""

    def container(written: str) -> dict[str, Any]:
        end, _, protocol = written.partition("/")
        address, _, number = end.rpartition(":")
        port = {"hostPort": int(number), "containerPort": 1, "hostIP": address}
        return {"ports": [port | ({"protocol": protocol} if protocol else {})]}

    sidecars = [container(init) | {"restartPolicy": restart}] if init else []
    return {"containers": list(map(container, containers)) or [{}], "initContainers": sidecars}


@pytest.mark.parametrize(
    ("running", "new", "conflict"),
    [
        pytest.param(with_ports("80"), with_ports("80"), True, id="all addresses"),
        pytest.param(with_ports("0.0.0.0:80"), with_ports("80"), True, id="all, in two ways"),
        pytest.param(with_ports("10.0.0.1:80"), with_ports("80"), True, id="all and one"),
        pytest.param(with_ports("0.0.0.0:80"), with_ports("10.0.0.1:80"), True, id="one and all"),
        pytest.param(with_ports("10.0.0.1:80"), with_ports("10.0.0.1:80"), True, id="the same"),
        pytest.param(with_ports("10.0.0.1:80"), with_ports("10.0.0.2:80"), False, id="others"),
        pytest.param(
            with_ports("10.0.0.1:80", "10.0.0.2:80"), with_ports("10.0.0.3:80"), False, id="three"
        ),
        pytest.param(
            with_ports("10.0.0.1:80", "80"), with_ports("10.0.0.3:80"), True, id="one with all"
        ),
        pytest.param(with_ports("80"), with_ports("80/UDP"), False, id="another protocol"),
        pytest.param(
            with_ports(init="80", restart="Always"), with_ports("80"), True, id="a sidecar"
        ),
        pytest.param(
            with_ports("80"), with_ports(init="80"), False, id="an init container that ends"
        ),
    ],
)
def test_host_ports_conflict_as_in_kubernetes(
    running: dict[str, Any], new: dict[str, Any], conflict: bool
) -> None:
    holder = pod(metadata={"name": "holder"}, spec=running | {"nodeName": "n"})
    state = cluster(builders.node("n"), holder, pod(spec=new))
    assert bool(builders.decide(state).bindings) is not conflict
    refusal = admit_pod(
        msgspec.convert({"spec": new}, Pod),
        [msgspec.convert({"spec": running}, Pod)],
        {"pods": 9},
        {},
    )
    assert (refusal is not None and refusal.reason == "NodePorts") is conflict


def resized(name: str, spec: str, actual: str = "", **status: Any) -> dict[str, Any]:
    """Return a running pod that requests ``spec`` CPUs now; its node reports ``actual``."""
    observed = {"name": "c", "resources": {"requests": {"cpu": actual}}} if actual else {}
    return {
        "metadata": {"name": name, "generation": 2},
        "spec": {"containers": [{"name": "c", **asking(cpu=spec)}], "nodeName": "n"},
        "status": {"containerStatuses": [observed], **status},
    }


PENDING = {"type": "PodResizePending", "status": "True"}


@pytest.mark.parametrize(
    ("raw", "cpu"),
    [
        pytest.param(resized("down", "2", "6"), 6000, id="down: it still uses more"),
        pytest.param(resized("up", "6", "2"), 6000, id="up: it will use more"),
        pytest.param(resized("done", "2", "2"), 2000, id="done"),
        pytest.param(resized("unknown", "2"), 2000, id="not reported"),
        pytest.param(
            resized("later", "6", "2", conditions=[PENDING | {"reason": "Deferred"}]),
            6000,
            id="up, when the node has it",
        ),
        pytest.param(
            resized("never", "6", "2", conditions=[PENDING | {"reason": "Infeasible"}]),
            2000,
            id="up, which the node never has",
        ),
        pytest.param(
            {
                **resized("allocated", "1"),
                "status": {
                    "containerStatuses": [
                        {"name": "c", "resources": {}, "allocatedResources": {"cpu": "3"}}
                    ]
                },
            },
            3000,
            id="allocated, not in effect yet",
        ),
        pytest.param(
            {
                **resized("pod", "1"),
                "spec": {
                    "containers": [{"name": "c"}],
                    "resources": {"requests": {"cpu": "2"}},
                    "nodeName": "n",
                },
                "status": {"resources": {"requests": {"cpu": "4"}}},
            },
            4000,
            id="of the pod as a unit",
        ),
        pytest.param(
            {
                **resized("sidecar", "1"),
                "spec": {
                    "containers": [{"name": "c", **asking(cpu="1")}],
                    "initContainers": [
                        {"name": "s", "restartPolicy": "Always", **asking(cpu="1")},
                        {"name": "i", **asking(cpu="2")},
                    ],
                },
                "status": {
                    "initContainerStatuses": [
                        {"name": name, "resources": {"requests": {"cpu": "5"}}} for name in "si"
                    ]
                },
            },
            7000,
            id="of a sidecar, not of an init container that has ended",
        ),
    ],
)
def test_requests_of_a_resized_pod_count_as_in_kube_scheduler(
    raw: dict[str, Any], cpu: int
) -> None:
    assert dict(pod(**raw).shape.request)["cpu"] == cpu


def huge_node(**allocatable: str) -> NodeInfo:
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": {"pods": "9"} | allocatable, "conditions": conditions}
    return convert.node_info(msgspec.convert({"metadata": {"name": "n"}, "status": status}, Node))


@pytest.mark.parametrize("resource", ["memory", "ephemeral-storage", "example.com/units"])
def test_amounts_above_a_pebibyte_are_exact(resource: str) -> None:
    asked = [str((7 << 50) + 1), str((5 << 50) - 1), "1"]
    state = cluster(huge_node(**{resource: "12Pi"}))
    for name, amount in enumerate(asked):
        state.set_pod(
            pod(metadata={"name": str(name)}, spec={"containers": [asking(**{resource: amount})]})
        )
    assert set(builders.placed(builders.decide(state))) == {"0", "1"}
    queue = msgspec.convert({"spec": {"capability": {resource: "100Pi"}}}, Queue)
    assert convert.queue_info(queue).capability == ((resource, 100 << 50),)


def test_absurd_amounts_neither_overflow_nor_fit() -> None:
    huge = pod(spec={"containers": [asking(cpu="1e18", memory="9E")]})
    state = SchedulerCache()
    state.set_node(builders.node("n"))
    state.set_pod(huge)
    assert not builders.decide(state).bindings
    for index in range(200):
        bound = msgspec.structs.replace(huge, key=PodKey(f"d/{index}"), node=NodeName("n"))
        state.set_pod(bound)
    assert (state.nodes.used >= 0).all()
    assert not builders.decide(state).bindings


@pytest.mark.parametrize(("pods", "fits"), [("9E", False), ("32Pi", False), ("31Pi", True)])
def test_no_node_has_more_than_amounts_can_be(pods: str, fits: bool) -> None:
    state = cluster(huge_node(memory="9E"), pod(spec={"containers": [asking(memory=pods)]}))
    assert bool(builders.decide(state).bindings) is fits


def test_equivalent_specs_are_converted_to_one_shape() -> None:
    plain = {"containers": [asking(cpu="1")]}
    near = {"labelSelector": {}, "topologyKey": "zone"}
    related = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    specs = [
        msgspec.convert(raw, LeanPodSpec)
        for raw in (
            plain,
            plain | {"nodeName": "n"},
            plain | {"nodeSelector": {"pool": "a"}},
            {"containers": [asking(cpu="2")]},
            plain | {"affinity": related},
            plain | {"tolerations": [{"operator": "Exists"}]},
        )
    ]
    assert [[convert.have_same_shape(one, other) for other in specs] for one in specs] == [
        [True, True, False, False, False, False],
        [True, True, False, False, False, False],
        [False, False, True, False, False, False],
        [False, False, False, True, False, False],
        # Inter-pod rules depend on more than the spec: they are always converted again.
        [False, False, False, False, False, False],
        [False, False, False, False, False, True],
    ]


@pytest.mark.parametrize(
    ("owner", "is_jobs"),
    [
        pytest.param({"apiVersion": "batch/v1", "kind": "Job", "controller": True}, True, id="Job"),
        pytest.param({"apiVersion": "batch/v1", "kind": "Job"}, False, id="not its controller"),
        pytest.param({"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}, False),
        pytest.param({"apiVersion": "x.io/v1", "kind": "Job", "controller": True}, False),
    ],
)
def test_a_pod_of_a_job_ends_some_time(owner: dict[str, Any], is_jobs: bool) -> None:
    owned = pod(metadata={"ownerReferences": [owner]}, spec={"nodeName": "n"})
    assert (owned.belongs_to_job, owned.may_run_forever) == (is_jobs, not is_jobs)


def test_a_pod_with_a_deadline_ends_some_time() -> None:
    limited = pod(spec={"activeDeadlineSeconds": 60})
    assert (limited.max_run_time_s, limited.may_run_forever) == (60.0, False)
    assert pod().may_run_forever


@pytest.mark.parametrize(("stated", "seconds"), [("600", 600.0), ("soon", 0.0), ("-1", 0.0)])
def test_a_queue_states_the_protected_run_time_of_its_gangs(stated: str, seconds: float) -> None:
    annotations = {"gangline.dev/protected-run-time-seconds": stated}
    raw = {"metadata": {"name": "q", "annotations": annotations}}
    assert convert.queue_info(msgspec.convert(raw, Queue)).protected_s == seconds


def test_claims_of_devices_are_seen() -> None:
    """A claim from a template has its name once the controller has created it."""
    claims = [
        {"name": "shared", "resourceClaimName": "s"},
        {"name": "gpu", "resourceClaimTemplateName": "t"},
        {"name": "nic", "resourceClaimTemplateName": "t"},
        {"name": "none", "resourceClaimTemplateName": "t"},
    ]
    statuses = [{"name": "gpu", "resourceClaimName": "p-gpu-x"}, {"name": "none"}]
    seen = pod(spec={"resourceClaims": claims}, status={"resourceClaimStatuses": statuses})
    assert seen.device_claims == ("d/?nic", "d/p-gpu-x", "d/s")


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({"metadata": {"name": "q"}}, "key", "d/q"),
        ({"metadata": {"uid": "v"}}, "uid", "v"),
        (
            {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}},
            "created",
            datetime(2026, 1, 1, tzinfo=UTC),
        ),
        ({"spec": {"priority": 7}}, "priority", 7),
        ({"metadata": {"annotations": {GROUP_NAME_ANNOTATION: "g"}}}, "group", "d/g"),
        ({"metadata": {"annotations": {ROLE_KEY: "worker"}}}, "role", "worker"),
        ({"spec": {"nodeName": "n"}}, "node", "n"),
        ({"status": {"phase": "Running"}}, "phase", "Running"),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "is_terminating", True),
        ({"spec": {"schedulingGates": [{"name": "g"}]}}, "is_gated", True),
        ({"spec": {"schedulerName": "other"}}, "is_ours", False),
        ({"metadata": {"labels": {"a": "b"}}}, "labels", (("a", "b"),)),
        ({"metadata": {"annotations": {PREEMPTABLE_KEY: "false"}}}, "preemptable", False),
        (
            {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}},
            "device_claims",
            ("d/c",),
        ),
        ({"spec": {"preemptionPolicy": "Never"}}, "may_preempt", False),
        (
            {"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}},
            "claims",
            ("d/c",),
        ),
        ({"metadata": {"ownerReferences": [JOB]}}, "belongs_to_job", True),
        ({"status": {"startTime": "1970-01-01T00:00:09Z"}}, "started_at", 9.0),
    ],
)
def test_each_field_of_a_pod_goes_into_one_attribute(
    fields: dict[str, Any], attribute: str, value: object
) -> None:
    plain, changed = msgspec.structs.asdict(pod()), msgspec.structs.asdict(pod(**fields))
    assert {name for name in plain if plain[name] != changed[name]} == {attribute}
    assert changed[attribute] == value


STRUCTS = [
    each
    for each in vars(wire).values()
    if isinstance(each, type) and issubclass(each, wire.Wire) and each.__module__ == wire.__name__
]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_a_field_that_is_null_was_not_given(struct: type[msgspec.Struct]) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(struct)]
    assert decode_object(struct, json.dumps(dict.fromkeys(names)).encode()) == struct()


def test_a_node_without_storage_drivers_has_no_limits() -> None:
    drivers = '{"drivers": [{"name": "d", "allocatable": {"count": 3}, "topologyKeys": null}]}'
    named = '{"metadata": {"name": "%s"}, "spec": %s}'
    items = ", ".join((named % ("bare", '{"drivers": null}'), named % ("full", drivers)))
    _, found, malformed = decode_page(wire.CSINode, f'{{"items": [{items}]}}'.encode())
    assert not malformed
    assert [(each.metadata.name, attach_limits(each)) for each in found] == [
        ("bare", {}),
        ("full", {"d": 3}),
    ]


VOLCANO = "scheduling.volcano.sh/"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-uid", "controller": True}


def annotated_pod(name: str, owned: bool = False, **annotations: str) -> PodInfo:
    stated = {f"{VOLCANO}{key.replace('_', '-')}": value for key, value in annotations.items()}
    kubernetes = {"k8s": "scheduling.k8s.io/group-name"}
    stated = {kubernetes.get(key.removeprefix(VOLCANO), key): v for key, v in stated.items()}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "d",
        "uid": f"uid-{name}",
        "annotations": stated,
        "ownerReferences": [OWNER] if owned else [],
    }
    cpu = {"resources": {"requests": {"cpu": "1"}}}
    raw = {"metadata": metadata, "spec": {"schedulerName": "gangline", "containers": [cpu]}}
    return convert.pod_info(slim_pod(msgspec.convert(raw, LeanPod)), {}, OURS)


@pytest.mark.parametrize(
    ("annotations", "named"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"k8s": "g"}, "d/g", id="the key of Kubernetes"),
        pytest.param({"group_name": "g"}, "d/g", id="the key of Volcano"),
        pytest.param({"k8s": "g", "group_name": "h"}, "d/g", id="both"),
        pytest.param({"queue_name": "q"}, "d/podgroup-uid-p", id="a queue"),
    ],
)
def test_a_pod_names_its_group(annotations: dict[str, str], named: str | None) -> None:
    assert annotated_pod("p", **annotations).group == named


def test_a_pod_without_a_group_goes_to_its_queue() -> None:
    alone = annotated_pod("p", queue_name="q")
    state = cluster(node("n1"), QueueInfo("q"), alone)
    assert [str(each.pod) for each in checked_cycle(state).bindings] == ["d/p"]
    state.assume(alone.key, state.nodes.name_of(0))
    assert state.usage.by_queue["q"]["cpu"] == 1000


def test_a_queue_that_does_not_exist_is_the_reason() -> None:
    (verdict,) = checked_cycle(
        cluster(node("n1"), annotated_pod("p", queue_name="q"))
    ).pending_reasons
    assert verdict.reason == "QueueNotFound"


def test_the_pods_of_one_owner_are_a_gang_of_the_stated_size() -> None:
    first, second = (annotated_pod(name, owned=True, group_min_member="2") for name in ("a", "b"))
    state = cluster(node("n1"), first)
    (verdict,) = checked_cycle(state).pending_reasons
    assert (verdict.group, verdict.reason) == ("d/podgroup-job-uid", "NotEnoughTasks")
    state.set_pod(second)
    assert [str(each.pod) for each in checked_cycle(state).bindings] == ["d/a", "d/b"]


def test_the_order_of_arrival_does_not_matter() -> None:
    pods = [
        annotated_pod("a", owned=True, group_min_member="2"),
        annotated_pod("b", owned=True, group_min_member="3"),
    ]
    states = [cluster(node("n1"), *pods), cluster(node("n1"), *reversed(pods))]
    assert [list(state.groups.values()) for state in states] == [[states[0].groups[KEY]]] * 2
    assert states[0].groups[KEY].min_member == 2


KEY = GroupKey("d/podgroup-job-uid")


def test_a_gang_ends_with_its_last_pod() -> None:
    only = annotated_pod("a", owned=True, group_min_member="2")
    state = cluster(node("n1"), only)
    assert KEY in state.groups
    state.remove_pod(only.key)
    assert not state.groups


def test_a_named_group_without_a_size_must_exist() -> None:
    (verdict,) = checked_cycle(
        cluster(node("n1"), annotated_pod("p", group_name="g"))
    ).pending_reasons
    assert verdict.reason == "PodGroupNotFound"


def test_a_pod_group_takes_precedence_and_its_removal_restores_the_annotations() -> None:
    member = annotated_pod("p", group_name="g", group_min_member="1")
    state = cluster(node("n1"), member)
    assert state.groups[GroupKey("d/g")].min_member == 1
    state.set_group(group("g", 5))
    assert state.groups[GroupKey("d/g")].min_member == 5
    state.set_pod(annotated_pod("other", group_name="g", group_min_member="2"))
    assert state.groups[GroupKey("d/g")].min_member == 5
    state.remove_group(GroupKey("d/g"))
    assert state.groups[GroupKey("d/g")].min_member == 2


@pytest.mark.parametrize("written", ["many", "-1", "0", "1e9", "999999999"])
def test_an_unreadable_size_is_one(written: str) -> None:
    implied = annotated_pod("p", group_min_member=written).implied_group
    assert implied.min_member == 1


@pytest.mark.parametrize(
    ("written", "amounts"),
    [('{"cpu": "2"}', (("cpu", 2000),)), ("{", ()), ('{"cpu": "x"}', ()), ('{"cpu": [1]}', ())],
)
def test_minimal_resources_are_json(written: str, amounts: tuple[tuple[str, int], ...]) -> None:
    implied = annotated_pod("p", queue_name="q", group_min_resources=written).implied_group
    assert implied.min_resources == amounts
