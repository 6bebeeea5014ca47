"""The small tables of a node: admission, devices, images, its object."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gangline.api.core.container import Container
from gangline.api.core.node import Node, NodeStatus
from gangline.api.core.pod import Pod
from gangline.local.kubelet.containers.images import ImageMapError, load_image_map
from gangline.local.kubelet.containers.plan import DeviceManager, gpu_variables
from gangline.local.kubelet.node import (
    build_node_status,
    is_status_outdated,
    node_allocatable,
    node_status_patch,
    withdrawn_resources,
)
from gangline.local.kubelet.pods.admission import admit_pod
from gangline.local.kubelet.settings import VirtualNodeSpec
from unit.local.kubelet.builders import NOW, a_pod, later

ROOM = {"cpu": 2000, "memory": 1 << 30, "pods": 3, "nvidia.com/gpu": 1}


def asking(host_port: int = 0, **resources: str) -> Pod:
    named = {name.replace("gpu", "nvidia.com/gpu"): value for name, value in resources.items()}
    body: dict[str, Any] = {"name": "c", "resources": {"requests": named}}
    if host_port:
        body["ports"] = [{"containerPort": 1, "hostPort": host_port}]
    return msgspec.convert({"metadata": {"name": "p"}, "spec": {"containers": [body]}}, Pod)


def sysctl(name: str) -> dict[str, Any]:
    return {"sysctls": [{"name": name, "value": "1"}]}


@pytest.mark.parametrize(
    ("pod", "others", "reason"),
    [
        (asking(cpu="2"), [], None),
        (asking(cpu="2001m"), [], "OutOfcpu"),
        (asking(cpu="1"), [asking(cpu="1500m")], "OutOfcpu"),
        (asking(memory="2Gi"), [], "OutOfmemory"),
        (asking(gpu="1"), [asking(gpu="1")], "OutOfnvidia.com/gpu"),
        (asking(), [asking()] * 3, "OutOfpods"),
        (asking(host_port=80), [asking(host_port=80)], "NodePorts"),
        (asking(host_port=80), [asking(host_port=81)], None),
        (a_pod(nodeSelector={"a": "b"}), [], "NodeAffinity"),
        (a_pod(nodeSelector={"zone": "z"}), [], None),
        (a_pod(securityContext=sysctl("kernel.msgmax")), [], "SysctlForbidden"),
        (a_pod(securityContext=sysctl("kernel/shm_rmid_forced")), [], None),
        (a_pod(securityContext=sysctl("net.ipv4.tcp_rmem")), [], None),
        (
            a_pod(securityContext=sysctl("net.ipv4.tcp_rmem"), hostNetwork=True),
            [],
            "SysctlForbidden",
        ),
    ],
)
def test_a_node_takes_what_fits(pod: Pod, others: list[Pod], reason: str | None) -> None:
    refusal = admit_pod(pod, others, ROOM, {"zone": "z"})
    assert (refusal.reason if refusal else None) == reason


def gpu_container(count: int, name: str = "c") -> Container:
    return msgspec.convert(
        {"name": name, "resources": {"limits": {"nvidia.com/gpu": count}}}, Container
    )


def test_gpus_stay_assigned_until_the_pod_is_deleted() -> None:
    table = DeviceManager((4, 5, 6))
    assert table.assign("a", gpu_container(2)) == (4, 5)
    assert table.assign("a", gpu_container(2)) == (4, 5)
    assert table.assign("b", gpu_container(2)) is None
    assert table.assign("b", gpu_container(1)) == (6,)
    table.release("a")
    assert table.assign("c", gpu_container(2)) == (4, 5)


def test_a_process_sees_its_gpus_only() -> None:
    assert gpu_variables((1, 3), True)["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert gpu_variables((), True)["CUDA_VISIBLE_DEVICES"] == ""
    assert gpu_variables((), False) == {}


def test_the_first_pattern_that_matches_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    loaded = load_image_map(
        {
            "reg/train:*": {"env": str(tmp_path / "a"), "variables": {"X": "1"}},
            "reg/*": {"root": str(tmp_path), "path": "/tools", "command": ["run"]},
        }
    )
    images = replace(loaded, environment=Path("/current"), system_path="/usr/bin:/bin")
    train = images.resolve("reg/train:1")
    assert train.variables["PATH"] == f"{tmp_path}/a/bin:/usr/bin:/bin"
    assert train.variables["X"] == "1"
    other = images.resolve("reg/other")
    assert (other.root, other.command) == (tmp_path, ("run",))
    assert other.variables["PATH"] == "/tools:/usr/bin:/bin"
    unknown = images.resolve("docker.io/any")
    assert not unknown.matched
    assert unknown.variables["PATH"].startswith("/current/bin:")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: {envv: /x}", "envv"),
        ("a: {env: /no/such/folder}", "there is no folder /no/such/folder"),
        ("a: [", "not valid YAML"),
        ("- a", "must map image patterns"),
        ("a: {variables: {X: 1}}", "Expected `str`"),
        ("a: {warm: [torch]}", "warm requires env"),
        ("a: {env: /usr, root: /, warm: [torch]}", "warm requires env"),
        ("a: {env: /usr, warm: [a b]}", "names of modules such as torch, not 'a b'"),
    ],
)
def test_invalid_image_map_is_refused_with_the_problem(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "images.yaml"
    path.write_text(text)
    with pytest.raises(ImageMapError, match=problem) as caught:
        load_image_map(path)
    assert str(path) in str(caught.value)


def test_warm_environment_has_the_variables_that_all_its_containers_get(tmp_path: Path) -> None:
    entry = {"env": str(tmp_path), "variables": {"OMP_NUM_THREADS": "1"}}
    loaded = load_image_map({"warm:*": {**entry, "warm": ["torch"]}, "cold:*": entry})
    images = replace(loaded, environment=Path("/current"), system_path="/usr/bin:/bin")
    warm = images.resolve("warm:1").warm
    assert warm is not None
    assert (warm.modules, warm.variables) == (("torch",), images.resolve("warm:1").variables)
    assert images.warm_environments() == [warm]
    assert images.resolve("cold:1").warm is None
    assert images.resolve("other").warm is None


def test_missing_image_map_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageMapError, match="No such file"):
        load_image_map(tmp_path / "none")
    assert load_image_map(None).entries == ()


def test_a_nodes_status_keeps_transition_times_and_beats() -> None:
    node = VirtualNodeSpec("n", 1500, 2 << 30, gpus=(0,))
    first = build_node_status(node, 10250, NodeStatus(), "no network", NOW)
    second = build_node_status(node, 10250, first, "no network", later(60))
    ready = {condition.type: condition for condition in second.conditions}["Ready"]
    assert ready.last_transition_time == NOW
    assert ready.last_heartbeat_time == later(60)
    assert "no network" in ready.message
    assert second.capacity == {
        "cpu": "1500m",
        "memory": "2Gi",
        "ephemeral-storage": "100Gi",
        "pods": "250",
        "nvidia.com/gpu": "1",
    }
    assert node_allocatable(node)["cpu"] == 1500
    wire = node_status_patch(second, first)["status"]
    assert wire["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    smaller = VirtualNodeSpec("n", 1500, 2 << 30)
    without = build_node_status(smaller, 10250, second, "", NOW, {"nvidia.com/gpu"})
    assert node_status_patch(without, second)["status"]["capacity"]["nvidia.com/gpu"] is None


VGPU = "tencent.com/vcuda-core"


def stored_node(annotation: str | None, **status: dict[str, str]) -> Node:
    annotations = {} if annotation is None else {"gangline.dev/resources": annotation}
    return msgspec.convert({"metadata": {"annotations": annotations}, "status": status}, Node)


def test_resource_that_a_user_adds_to_a_nodes_capacity_becomes_allocatable_and_stays() -> None:
    node = VirtualNodeSpec("n", 1500, 2 << 30, resources={VGPU: 100})
    own = build_node_status(node, 10250, NodeStatus(), "", NOW)
    assert own.capacity[VGPU] == "100"
    patched = msgspec.structs.replace(own, capacity={**own.capacity, "a.com/nic": "2"})
    assert is_status_outdated(node, Node(status=patched))
    after = build_node_status(node, 10250, patched, "", NOW)
    assert after.allocatable["a.com/nic"] == after.capacity["a.com/nic"] == "2"
    assert not is_status_outdated(node, Node(status=after))
    own_changed = msgspec.structs.replace(own, capacity={**own.capacity, VGPU: "7"})
    assert build_node_status(node, 10250, own_changed, "", NOW).capacity[VGPU] == "100"


def test_resource_that_a_user_removes_from_the_capacity_is_no_longer_allocatable() -> None:
    node = VirtualNodeSpec("n", 1500, 2 << 30)
    own = build_node_status(node, 10250, NodeStatus(), "", NOW)
    stale = msgspec.structs.replace(own, allocatable={**own.allocatable, "a.com/nic": "2"})
    assert is_status_outdated(node, Node(status=stale))
    after = build_node_status(node, 10250, stale, "", NOW)
    assert node_status_patch(after, stale)["status"]["allocatable"]["a.com/nic"] is None


@pytest.mark.parametrize(
    ("annotation", "withdrawn"),
    [
        ("nvidia.com/gpu," + VGPU, {"nvidia.com/gpu"}),
        ("", set()),
    ],
    ids=["of an earlier kubelet", "of users"],
)
def test_only_resources_of_an_earlier_kubelet_are_withdrawn(annotation, withdrawn) -> None:
    capacity = {"cpu": "1", "nvidia.com/gpu": "1", VGPU: "5", "a.com/nic": "2"}
    node = VirtualNodeSpec("n", 1500, 2 << 30, resources={VGPU: 100})
    assert withdrawn_resources(node, stored_node(annotation, capacity=capacity)) == withdrawn


def test_extended_resource_that_the_kubelet_does_not_know_is_left_to_the_scheduler() -> None:
    unknown = msgspec.convert(
        {"spec": {"containers": [{"name": "c", "resources": {"limits": {VGPU: "100"}}}]}}, Pod
    )
    assert admit_pod(unknown, [], ROOM, {}) is None
    refusal = admit_pod(unknown, [], {**ROOM, VGPU: 50}, {})
    assert refusal is not None
    assert refusal.reason == f"OutOf{VGPU}"


def test_node_without_devices_runs_a_pod_for_which_the_scheduler_counts_them() -> None:
    assert DeviceManager(()).assign("a", gpu_container(2)) == ()
