"""Scheduling constraints of a pod: affinity, tolerations, topology spread.

Whether a toleration matches a taint: one rule for the scheduler and for evictions.
"""

from typing import Annotated, Protocol

from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import LabelSelector, Wire

_ABOUT_IGNORED = "; a later change of labels does not evict the pod."


class NodeSelectorRequirement(Wire):
    """One expression on a label or field of a node."""

    key: Annotated[str, doc("Label key or field.", required=True)] = ""
    operator: Annotated[
        str,
        doc(
            "Relation of key and values.",
            required=True,
            values=("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
        ),
    ] = ""
    values: Annotated[
        list[str], doc("Values; none for Exists and DoesNotExist, one number for Gt and Lt.")
    ] = []


class NodeSelectorTerm(Wire):
    """All expressions of a term must be true. An empty term matches nothing."""

    match_expressions: Annotated[
        list[NodeSelectorRequirement], doc("Expressions about labels.")
    ] = []
    match_fields: Annotated[
        list[NodeSelectorRequirement], doc("Expressions about fields: metadata.name.")
    ] = []


class NodeSelector(Wire):
    """Nodes that match any of the terms."""

    node_selector_terms: Annotated[
        list[NodeSelectorTerm], doc("Terms; one must match.", required=True)
    ] = []


class PreferredSchedulingTerm(Wire):
    """A preferred node selector term, with its weight."""

    weight: Annotated[int, doc("From 1 to 100.", required=True, minimum=1, maximum=100)] = 0
    preference: Annotated[NodeSelectorTerm, doc("The preferred nodes.", required=True)] = (
        NodeSelectorTerm()
    )


class NodeAffinity(Wire):
    """Nodes that a pod requires or prefers."""

    required_during_scheduling_ignored_during_execution: Annotated[
        NodeSelector | None, doc("Nodes that the pod requires" + _ABOUT_IGNORED)
    ] = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredSchedulingTerm], doc("Nodes that the pod prefers, by weight.")
    ] = []


class PodAffinityTerm(Wire):
    """A set of pods, and the topology domain in which they count as co-located."""

    label_selector: Annotated[LabelSelector | None, doc("The pods; none when unset.")] = None
    namespaces: Annotated[list[str], doc("Their namespaces; this pod's when not given.")] = []
    namespace_selector: Annotated[
        LabelSelector | None, doc("Their namespaces by label; an empty one means all.")
    ] = None
    topology_key: Annotated[
        str, doc("Node label; nodes with equal values are one domain.", required=True)
    ] = ""
    match_label_keys: Annotated[list[str], doc("Labels whose values must equal this pod's.")] = []
    mismatch_label_keys: Annotated[
        list[str], doc("Labels whose values must differ from this pod's.")
    ] = []


class WeightedPodAffinityTerm(Wire):
    """A preferred pod affinity term, with its weight."""

    weight: Annotated[int, doc("From 1 to 100.", required=True, minimum=1, maximum=100)] = 0
    pod_affinity_term: Annotated[
        PodAffinityTerm, doc("The pods and the topology domain.", required=True)
    ] = PodAffinityTerm()


class PodAffinity(Wire):
    """Pods to be co-located with, or (as podAntiAffinity) separated from."""

    required_during_scheduling_ignored_during_execution: Annotated[
        list[PodAffinityTerm], doc("Required terms" + _ABOUT_IGNORED)
    ] = []
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[WeightedPodAffinityTerm], doc("Preferred terms, by weight.")
    ] = []


class Affinity(Wire):
    """All affinity rules of a pod."""

    node_affinity: Annotated[NodeAffinity | None, doc("Required and preferred nodes.")] = None
    pod_affinity: Annotated[PodAffinity | None, doc("Pods to be co-located with.")] = None
    pod_anti_affinity: Annotated[PodAffinity | None, doc("Pods to be separated from.")] = None


class Toleration(Wire):
    """Node taints that the pod tolerates."""

    key: Annotated[str, doc("Taint key; with operator Exists, empty means every taint.")] = ""
    operator: Annotated[
        str,
        doc(
            "Relation to the taint's value; Equal when not given.",
            values=("Equal", "Exists", "Lt", "Gt"),
        ),
    ] = ""
    value: Annotated[str, doc("Taint value; none for Exists.")] = ""
    effect: Annotated[
        str,
        doc(
            "Tolerated effect; all effects when not given.",
            values=("NoSchedule", "PreferNoSchedule", "NoExecute"),
        ),
    ] = ""
    toleration_seconds: Annotated[
        int | None, doc("For NoExecute: seconds until eviction; never when not given.")
    ] = None


class TopologySpreadConstraint(Wire):
    """How evenly pods must be spread over topology domains."""

    max_skew: Annotated[
        int, doc("Largest allowed difference between domains.", required=True, minimum=1)
    ] = 0
    topology_key: Annotated[
        str, doc("Node label; nodes with equal values are one domain.", required=True)
    ] = ""
    when_unsatisfiable: Annotated[
        str,
        doc("Wait, or schedule anyway.", required=True, values=("DoNotSchedule", "ScheduleAnyway")),
    ] = ""
    label_selector: Annotated[LabelSelector | None, doc("The pods that are counted.")] = None
    min_domains: Annotated[
        int | None, doc("Fewer domains than this count as uneven.", minimum=1)
    ] = None
    node_affinity_policy: Annotated[
        str,
        doc(
            "Do nodes that do not match the pod count? Honor excludes them.",
            values=("Honor", "Ignore"),
        ),
    ] = ""
    node_taints_policy: Annotated[
        str, doc("Do tainted nodes count? Honor excludes them.", values=("Honor", "Ignore"))
    ] = ""
    match_label_keys: Annotated[list[str], doc("Labels whose values must equal this pod's.")] = []


class _TaintFields(Protocol):
    @property
    def key(self) -> str:
        """Key of the taint; empty in a toleration matches every key."""

    @property
    def value(self) -> str:
        """Value that a toleration without operator Exists must equal."""

    @property
    def effect(self) -> str:
        """Effect on pods; empty in a toleration matches every effect."""


class _Toleration(_TaintFields, Protocol):
    @property
    def operator(self) -> str:
        """``Exists`` matches any value; otherwise the values must be equal."""


def tolerates(toleration: _Toleration, taint: _TaintFields) -> bool:
    """Whether a toleration matches a taint, by the rules of Kubernetes."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value
