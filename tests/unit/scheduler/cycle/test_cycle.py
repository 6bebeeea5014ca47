"""A cycle places complete gangs or nothing, in scheduling order, on real nodes."""

from gangline.scheduler.types import (
    CycleResult,
    TaintInfo,
)
from unit.scheduler.builders import (
    cluster,
    decide,
    group,
    node,
    on_label,
    placed,
    pod,
)
from unit.scheduler.device_builders import user


def pod_message(decision: CycleResult, name: str) -> str:
    messages = dict(entry for verdict in decision.pending_reasons for entry in verdict.pods)
    return messages[f"d/{name}"]  # type: ignore[index]


def test_unusable_nodes_have_kubernetes_messages() -> None:
    state = cluster(
        node("cordoned", unschedulable=True),
        node("gone", ready=False),
        node("tainted", taints=(TaintInfo("gpu", "yes", "NoSchedule"),)),
        node("unlike", labels={"zone": "b"}),
        node("small", cpu=1, memory=1, labels={"zone": "a"}),
        pod("p", cpu=2, memory=2, constraints=on_label(zone="a")),
    )
    decision = decide(state)
    assert pod_message(decision, "p").startswith(
        "0/5 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, "
        "1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint {gpu: yes}, 1 node(s) were not ready, "
        "1 node(s) were unschedulable."
    )


def test_cluster_without_nodes_has_its_message() -> None:
    assert "no nodes available to schedule pods" in pod_message(decide(cluster(pod("p"))), "p")


def test_a_port_that_was_given_back_is_free_on_nodes_that_came_later() -> None:
    state = cluster(node("a"), pod("first", port=80, on="a"))
    state.remove_pod(pod("first").key)
    state.remove_node(node("a").name)
    state.set_node(node("b"))
    state.set_pod(pod("second", port=80))
    assert placed(decide(state)) == {"second": "b"}


def test_pods_with_claims_of_devices_are_refused_with_a_reason() -> None:
    state = cluster(
        node("n1"),
        user("alone", "c"),
        group("gang", 2),
        user("gang-0", "c", group="gang"),
        pod("gang-1", group="gang"),
        pod("other"),
    )
    result = decide(state)
    assert [str(each.pod) for each in result.bindings] == ["d/other"]
    refused = {v.reason: {str(key) for key, _ in v.pods} for v in result.pending_reasons}
    assert refused.keys() == {"ResourceClaimsNotSupported"}
    texts = {str(key): text for v in result.pending_reasons for key, text in v.pods}
    assert texts.keys() == {"d/alone", "d/gang-0", "d/gang-1"}
    assert all("spec.resourceClaims" in text for text in texts.values())
