"""The lifecycle of pods on a node is that of Kubernetes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import ContainerStatus
from gangline.api.resources import CONFIG_MAPS, LEASES, NODES, PODS, SECRETS

LogOf = Callable[..., str]


def shell(script: str, name: str = "c", **more: Any) -> dict[str, Any]:
    """The JSON of a container that runs a shell script."""
    return {"name": name, "image": "any/image", "command": ["sh", "-c", script], **more}


def first(pod: Pod) -> ContainerStatus:
    return pod.status.container_statuses[0]


def condition(pod: Pod, kind: str) -> str:
    return next((c.status for c in pod.status.conditions if c.type == kind), "")


async def test_the_node_registers_and_beats(node: Any) -> None:
    while True:
        leases = (await node.client.list(LEASES, "kube-node-lease")).items
        if leases and leases[0].spec.renew_time:
            break
        await asyncio.sleep(0.05)
    stored = await node.client.get(NODES, "n1")
    assert stored.status.capacity["cpu"] == "8"
    assert stored.status.capacity["nvidia.com/gpu"] == "2"
    assert {c.type: c.status for c in stored.status.conditions}["Ready"] == "True"
    before = leases[0].spec.renew_time
    while (await node.client.get(LEASES, "n1", "kube-node-lease")).spec.renew_time == before:
        await asyncio.sleep(0.05)


async def test_a_pod_runs_to_success(node: Any, log_of: LogOf) -> None:
    await node.run(containers=[shell("echo hello")], restartPolicy="Never")
    pod = await node.until_phase("Succeeded")
    ended = first(pod).state.terminated
    assert ended is not None
    assert (ended.exit_code, ended.reason) == (0, "Completed")
    assert pod.status.pod_ip.startswith("127.")
    assert condition(pod, "Initialized") == "True"
    assert condition(pod, "Ready") == "False"
    assert pod.status.qos_class == "BestEffort"
    assert log_of() == "hello"


async def test_a_crashing_container_backs_off(node: Any) -> None:
    await node.run(containers=[shell("exit 1")], restartPolicy="OnFailure")

    def waits(pod: Pod) -> bool:
        waiting = pod.status.container_statuses and first(pod).state.waiting
        return bool(waiting) and waiting.reason == "CrashLoopBackOff"

    pod = await node.until(waits)
    assert pod.status.phase == "Running"
    assert first(pod).last_state.terminated is not None
    pod = await node.until(lambda pod: first(pod).restart_count >= 2)


async def test_init_containers_run_in_order_beside_a_sidecar(node: Any, log_of: LogOf) -> None:
    mounts = [{"name": "v", "mountPath": "/shared"}]
    await node.run(
        restartPolicy="Never",
        volumes=[{"name": "v", "emptyDir": {}}],
        initContainers=[
            shell("echo a >>/shared/order", "i1", volumeMounts=mounts),
            shell("echo s >>/shared/order; sleep 60", "side", volumeMounts=mounts)
            | {"restartPolicy": "Always"},
            shell("sleep 0.2; echo b >>/shared/order", "i2", volumeMounts=mounts),
        ],
        containers=[shell("cat /shared/order", volumeMounts=mounts)],
    )
    pod = await node.until_phase("Succeeded")
    assert log_of() == "a\ns\nb"
    assert [each.name for each in pod.status.init_container_statuses] == ["i1", "side", "i2"]


async def test_a_missing_config_map_holds_the_container_until_it_is_there(
    node: Any, log_of: LogOf
) -> None:
    ref = {"configMapKeyRef": {"name": "cm", "key": "k"}}
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = [
        {"name": "FROM_MAP", "valueFrom": ref},
        {"name": "FROM_SECRET", "valueFrom": secret},
        {"name": "BOTH", "value": "$(FROM_MAP)-$(FROM_SECRET)-$$(X)-$(NONE)"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    await node.run(containers=[shell('echo "$BOTH $POD $IP"', env=env)], restartPolicy="Never")

    def held(pod: Pod) -> bool:
        waiting = pod.status.container_statuses and first(pod).state.waiting
        return bool(waiting) and waiting.reason == "CreateContainerConfigError"

    pod = await node.until(held)
    waiting = first(pod).state.waiting
    assert waiting is not None
    assert waiting.message == 'configmap "cm" not found'
    map_body = {"metadata": {"name": "cm"}, "data": {"k": "v"}}
    await node.client.create(CONFIG_MAPS, map_body, "default")
    secret_body = {"metadata": {"name": "s"}, "data": {"k": "dw=="}}
    await node.client.create(SECRETS, secret_body, "default")
    pod = await node.until_phase("Succeeded")
    assert log_of() == f"v-w-$(X)-$(NONE) p {pod.status.pod_ip}"


DEAF = "trap '' TERM; echo deaf; while :; do sleep 0.1; done"
ALL = {"resources": {"requests": {"cpu": "8"}}}


@pytest.mark.parametrize("grace_s", [None, 300])
async def test_a_pod_waits_for_the_processes_of_one_that_was_deleted_by_force(
    node: Any, log_of: LogOf, grace_s: int | None
) -> None:
    await node.run("former", containers=[shell(DEAF, **ALL)])
    await node.until_phase("Running", "former")
    while "deaf" not in log_of(pod="former"):
        await asyncio.sleep(0.02)
    (former,) = node.kubelet.workers.values()
    if grace_s is not None:
        await node.client.delete(PODS, "former", "default", grace_seconds=grace_s)
    await node.client.delete(PODS, "former", "default", grace_seconds=0)
    await node.run("next", containers=[shell("sleep 60", **ALL)])
    await node.run("surplus", containers=[shell("true", **ALL)])
    refused = await node.until_phase("Failed", "surplus")
    assert refused.status.reason == "OutOfcpu"
    assert former.holds_resources
    await node.until_phase("Running", "next")
    assert not former.holds_resources


async def test_a_pod_waits_for_the_processes_of_one_that_has_failed(node: Any) -> None:
    await node.run("former", containers=[shell(DEAF, **ALL)], activeDeadlineSeconds=1)
    await node.until_phase("Failed", "former")
    await node.run("next", containers=[shell("true", **ALL)], restartPolicy="Never")
    await node.until_phase("Succeeded", "next")
    former = await node.client.get(PODS, "former", "default")
    assert first(former).state.terminated is not None


async def test_probes_decide_readiness_and_life(node: Any) -> None:
    fast = {"periodSeconds": 1, "failureThreshold": 1}
    container = shell("touch /tmp/ok; sleep 1.5; rm /tmp/ok; sleep 60") | {
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/ok"]}, **fast},
        "livenessProbe": {
            "exec": {"command": ["test", "-e", "/tmp/ok"]},
            **fast,
            "terminationGracePeriodSeconds": 1,
        },
    }
    await node.run(containers=[container])
    await node.until(lambda pod: condition(pod, "Ready") == "True")
    pod = await node.until(lambda pod: first(pod).restart_count >= 1)
    assert first(pod).last_state.terminated is not None


async def test_hooks_run_after_the_start_and_before_the_end(node: Any, log_of: LogOf) -> None:
    volume = [{"name": "v", "mountPath": "/v"}]
    hooks = {
        "postStart": {"exec": {"command": ["sh", "-c", "echo post >/v/post"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "touch /v/stop; sleep 0.3"]}},
    }
    script = "until [ -e /v/stop ]; do sleep 0.05; done; cat /v/post; sleep 60"
    await node.run(
        volumes=[{"name": "v", "emptyDir": {"medium": "Memory"}}],
        containers=[shell(script, volumeMounts=volume, lifecycle=hooks)],
    )
    await node.until(lambda pod: condition(pod, "Ready") == "True")
    await node.client.delete(PODS, "p", "default")
    while "post" not in log_of():
        await asyncio.sleep(0.02)
    await node.until_gone()
    assert not (await node.client.list(PODS)).items


async def test_pods_follow_their_restart_policy_after_a_power_loss(node: Any) -> None:
    await node.run("always", containers=[shell("sleep 60")])
    await node.run("never", containers=[shell("sleep 60")], restartPolicy="Never")
    for name in ("always", "never"):
        await node.until_phase("Running", name)
    await node.crash()
    await node.boot()
    pod = await node.until_phase("Failed", "never")
    ended = first(pod).state.terminated
    assert ended is not None
    assert (ended.exit_code, ended.reason) == (137, "ContainerStatusUnknown")
    assert "node agent was restarted" in ended.message
    pod = await node.until(
        lambda pod: first(pod).restart_count == 1 and first(pod).state.running, "always"
    )


async def test_a_node_that_is_stopped_starts_nothing_again(
    node: Any, tmp_path: Path, log_of: LogOf
) -> None:
    await node.run(containers=[shell("trap 'echo bye; exit 0' TERM; echo up; sleep 60 & wait")])
    await node.until_phase("Running")
    while "up" not in log_of():
        await asyncio.sleep(0.02)
    await node.cut()
    await node.kubelet.stop(5)
    assert node.kubelet.workers == {}
    logs = list((tmp_path / "node" / "logs").glob("*/c/*.log"))
    assert [log.name for log in logs] == ["0.log"]
    assert "bye" in logs[0].read_text()


async def test_a_node_that_was_cut_off_keeps_its_pods(node: Any) -> None:
    await node.run("stays", containers=[shell("sleep 60")])
    await node.run("goes", containers=[shell("sleep 60")])
    for name in ("stays", "goes"):
        await node.until_phase("Running", name)
    await node.cut()
    await node.client.delete(PODS, "goes", "default", grace_seconds=0)
    await node.mend()
    async with asyncio.timeout(10):
        while len(node.kubelet.workers) > 1:
            await asyncio.sleep(0.05)
    pod = await node.client.get(PODS, "stays", "default")
    assert (pod.status.phase, first(pod).restart_count) == ("Running", 0)


async def test_a_pod_over_its_memory_limit_is_oom_killed(node: Any) -> None:
    hog = "b = bytearray(200 << 20); import time; time.sleep(30)"
    container = {
        "name": "c",
        "image": "any/image",
        "command": ["/usr/bin/python3", "-S", "-c", hog],
        "resources": {"limits": {"memory": "64Mi"}},
    }
    await node.run(containers=[container], restartPolicy="Never")
    pod = await node.until_phase("Failed")
    ended = first(pod).state.terminated
    assert ended is not None
    assert (ended.exit_code, ended.reason) == (137, "OOMKilled")
