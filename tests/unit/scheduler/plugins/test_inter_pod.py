"""Inter-pod affinity, anti-affinity and topology spread."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from gangline.api.meta.selectors import parse_label_selector
from gangline.scheduler.cache.convert_placement import inter_pod_rules
from gangline.scheduler.types import (
    CycleResult,
    InterPodRules,
    PlacementConstraints,
    PodGroupInfo,
    PodInfo,
    PodTerm,
    SpreadTerm,
    TaintInfo,
)
from gangline.scheduler.wire import LeanPodSpec
from unit.scheduler.builders import cluster, decide, group, node, pod

HOST = "kubernetes.io/hostname"
WEB = (("app", "web"),)


def web(key: str = HOST, weight: int = 0) -> PodTerm:
    return PodTerm(parse_label_selector("app=web"), key, weight=weight)


def wanting(**wants: Any) -> PlacementConstraints:
    return PlacementConstraints(inter_pod=InterPodRules(**wants))


APART = wanting(anti_affinity=(web(),))


def hosts(count: int, cpu: float = 8) -> list[Any]:
    zones = ("a", "a", "b", "b")
    return [
        node(f"n{i}", cpu=cpu, labels={HOST: f"n{i}", "zone": zones[i % 4]}) for i in range(count)
    ]


def gang(size: int, **facts: Any) -> list[PodGroupInfo | PodInfo]:
    return [group("job", size), *(pod(f"j{i}", group="job", **facts) for i in range(size))]


def counts(decision: CycleResult) -> Counter[str]:
    return Counter(str(binding.node) for binding in decision.bindings)


def test_pods_go_where_those_are_that_they_must_be_near_to() -> None:
    near = gang(2, constraints=wanting(affinity=(web("zone"),)))
    state = cluster(*hosts(4), pod("there", on="n2", labels=WEB), *near)
    assert set(counts(decide(state))) <= {"n2", "n3"}
    decision = decide(cluster(*hosts(4), *near))
    assert not decision.bindings
    assert "4 node(s) didn't match pod affinity rules" in decision.pending_reasons[0].message


def test_too_few_places_count_as_uneven() -> None:
    even = wanting(spread=(SpreadTerm(web("zone"), max_skew=1, min_domains=3),))
    assert not decide(cluster(*hosts(4), *gang(3, constraints=even, labels=WEB))).bindings
    assert decide(cluster(*hosts(4), *gang(2, constraints=even, labels=WEB))).bindings


TAINTED = (TaintInfo("x", "y", "NoSchedule"),)


@pytest.mark.parametrize(
    ("policies", "selector", "expected"),
    [
        # A node that the pod may not use is a domain with no pod: no other may have two.
        pytest.param({}, (), 3, id="a taint is ignored"),
        pytest.param({"honors_taints": True}, (), 6, id="a taint is honored"),
        pytest.param({}, (("zone", "a"),), 6, id="a selector is honored"),
        pytest.param({"honors_affinity": False}, (("zone", "a"),), 2, id="a selector is ignored"),
    ],
)
@pytest.mark.parametrize("cordoned", [False, True])
def test_policies_of_spread_decide_which_nodes_are_domains(
    policies: dict[str, bool], selector: Any, expected: int, cordoned: bool
) -> None:
    """The numbers are those of kube-scheduler 1.37."""
    last = {"unschedulable": True} if cordoned else {"taints": TAINTED}
    nodes = [*hosts(3), node("n3", cpu=8, labels={HOST: "n3", "zone": "b"}, **last)]
    constraints = PlacementConstraints(
        selector=selector, inter_pod=InterPodRules(spread=(SpreadTerm(web(), **policies),))
    )
    pods = [pod(f"p{n}", constraints=constraints, labels=WEB) for n in range(6)]
    assert counts(decide(cluster(*nodes, *pods))).total() == expected


def test_terminating_pods_do_not_count_for_spread() -> None:
    even = wanting(spread=(SpreadTerm(web()),))
    ending = pod("ending", on="n0", labels=WEB, is_terminating=True)
    pods = [pod(f"p{n}", constraints=even, labels=WEB) for n in range(2)]
    assert counts(decide(cluster(*hosts(2), ending, *pods))) == Counter(n0=1, n1=1)


def test_nodes_that_lack_a_label_of_another_constraint_are_no_domains() -> None:
    both = wanting(spread=(SpreadTerm(web()), SpreadTerm(web("rack"))))
    nodes = [*hosts(2), node("n2", labels={HOST: "n2", "rack": "r"})]
    pods = [pod(f"p{n}", constraints=both, labels=WEB) for n in range(3)]
    assert counts(decide(cluster(*nodes, *pods))) == Counter(n2=3)


def test_all_required_affinity_terms_select_the_same_pod() -> None:
    database = PodTerm(parse_label_selector("tier=db"), "zone")
    near = wanting(affinity=(web("zone"), database))
    apart = [pod("web", on="n0", labels=WEB), pod("db", on="n1", labels=(("tier", "db"),))]
    wants = pod("p", constraints=near)
    assert not decide(cluster(*hosts(4), *apart, wants)).bindings
    one = pod("both", on="n2", labels=(*WEB, ("tier", "db")))
    assert set(counts(decide(cluster(*hosts(4), *apart, one, wants)))) <= {"n2", "n3"}


def evicted(*things: Any) -> set[str]:
    state = cluster(*things)
    return {str(eviction.pod).removeprefix("d/") for eviction in decide(state).evictions}


def test_pods_that_a_preemptor_must_be_near_to_are_not_all_evicted() -> None:
    """As on one node: kube-scheduler tries the pods of each node by themselves."""
    low = [pod(f"low{n}", cpu=6, on=f"n{n}", labels=WEB) for n in range(2)]
    full = [pod(f"full{n}", cpu=8, on=f"n{n}", labels=WEB, priority=9) for n in (2, 3)]
    near = pod("p", cpu=6, constraints=wanting(affinity=(web("zone"),)), priority=5)
    assert len(evicted(*hosts(4), *low, *full, near)) == 1


def test_a_preemptor_does_not_become_the_first_by_evictions_in_other_domains() -> None:
    constraints = PlacementConstraints(
        selector=(("zone", "a"),), inter_pod=InterPodRules(affinity=(web("zone"),))
    )
    first = pod("p", cpu=8, constraints=constraints, labels=WEB, priority=5)
    here = pod("here", on="n0", labels=WEB)
    nodes = [hosts(3)[index] for index in (0, 2)]
    assert evicted(*nodes, here, first) == {"here"}
    assert evicted(*nodes, here, pod("there", on="n2", labels=WEB), first) == set()


def test_spread_counts_pods_of_the_same_template_only() -> None:
    constraint = {
        "topologyKey": HOST,
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
        "matchLabelKeys": ["hash", "unset"],
        "minDomains": 2,
    }
    spec = msgspec.convert({"topologySpreadConstraints": [constraint]}, LeanPodSpec)
    rules = inter_pod_rules(spec, {"hash": "new"})
    old, new = (tuple(sorted([*WEB, ("hash", value)])) for value in ("old", "new"))
    wants = pod("p", constraints=PlacementConstraints(inter_pod=rules), labels=new)
    runs = [pod("new", on="n0", labels=new), pod("old", on="n1", labels=old)]
    assert counts(decide(cluster(*hosts(2), *runs, wants))) == Counter(n1=1)
    assert not counts(decide(cluster(*hosts(1), *runs, wants)))


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        pytest.param({"affinity": (web(weight=100),)}, "n1", id="liked"),
        pytest.param({"anti_affinity": (web(weight=100),)}, "n0", id="disliked"),
        pytest.param({"spread": (SpreadTerm(web(), hard=False),)}, "n0", id="to be spread"),
    ],
)
def test_wishes_decide_between_nodes(wants: dict[str, Any], expected: str) -> None:
    state = cluster(
        *hosts(2),
        pod("other", on="n0", cpu=1),
        pod("there", on="n1", cpu=1, labels=WEB),
        *gang(1, constraints=wanting(**wants)),
    )
    assert counts(decide(state)) == Counter({expected: 1})


def test_terms_are_read() -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    spec = msgspec.convert(
        {
            "affinity": {
                "podAffinity": {required: [{**term, "namespaceSelector": {}}]},
                "podAntiAffinity": {required: [{**term, "matchLabelKeys": ["hash"]}]},
            },
            "topologySpreadConstraints": [
                {**term, "maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway"},
                {**term, "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"},
            ],
        },
        LeanPodSpec,
    )
    found = inter_pod_rules(spec, {"hash": "7"})
    assert found.affinity[0].namespaces is None
    assert str(found.anti_affinity[0].selector) == "app=web,hash in (7)"
    assert (found.spread[0].max_skew, found.spread[0].hard) == (2, False)
    policies = [(spread.honors_affinity, spread.honors_taints) for spread in found.spread]
    assert policies == [(True, False), (False, True)]
    assert inter_pod_rules(LeanPodSpec(), {}) is None


def test_nodes_are_reserved_for_a_gang_that_running_gangs_keep_away() -> None:
    """Their pods end some time: until then no smaller job with the same label may take a node."""
    state = cluster(
        *hosts(2),
        group("runs", 2),
        *(pod(f"r{i}", on=f"n{i}", group="runs", labels=WEB) for i in range(2)),
        *gang(2, constraints=APART, labels=WEB),
    )
    assert "Nodes are reserved for it: n0, n1" in decide(state).pending_reasons[0].message
    for i in range(2):
        state.set_pod(pod(f"r{i}", on=f"n{i}", labels=WEB))
    assert "reserved" not in decide(state).pending_reasons[0].message


def test_nodes_are_reserved_for_a_gang_that_must_be_near_pods_that_may_end() -> None:
    state = cluster(
        *hosts(2, cpu=4),
        group("near", 1),
        pod("near", on="n1", cpu=3, group="near", labels=WEB),
        group("full", 1),
        pod("full", on="n1", cpu=1, group="full"),
        *gang(1, constraints=wanting(affinity=(web(),))),
    )
    assert "Nodes are reserved for it: n1" in decide(state).pending_reasons[0].message
