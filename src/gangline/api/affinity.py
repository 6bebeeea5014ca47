"""Which nodes a pod may or would like to go to: affinity, tolerations, spreading."""

from typing import Annotated

from gangline.api.describe import about
from gangline.api.meta import LabelSelector, Wire

_ABOUT_IGNORED = "; a later change of labels does not move the pod."


class NodeSelectorRequirement(Wire):
    """One expression about a node's label or field."""

    key: Annotated[str, about("Label key or field.", required=True)] = ""
    operator: Annotated[
        str,
        about(
            "How key and values relate.",
            required=True,
            values=("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
        ),
    ] = ""
    values: Annotated[
        list[str], about("Values; none for Exists and DoesNotExist, one number for Gt and Lt.")
    ] = []


class NodeSelectorTerm(Wire):
    """All expressions of a term must hold. An empty term matches nothing."""

    match_expressions: Annotated[
        list[NodeSelectorRequirement], about("Expressions about labels.")
    ] = []
    match_fields: Annotated[
        list[NodeSelectorRequirement], about("Expressions about fields: metadata.name.")
    ] = []


class NodeSelector(Wire):
    """Nodes that any of the terms matches."""

    node_selector_terms: Annotated[
        list[NodeSelectorTerm], about("Terms; one must match.", required=True)
    ] = []


class PreferredSchedulingTerm(Wire):
    """Nodes that are liked, and how much."""

    weight: Annotated[int, about("From 1 to 100.", required=True, minimum=1, maximum=100)] = 0
    preference: Annotated[NodeSelectorTerm, about("The nodes meant.", required=True)] = (
        NodeSelectorTerm()
    )


class NodeAffinity(Wire):
    """Nodes that a pod must or would like to go to."""

    required_during_scheduling_ignored_during_execution: Annotated[
        NodeSelector | None, about("Nodes the pod must go to" + _ABOUT_IGNORED)
    ] = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredSchedulingTerm], about("Nodes the pod would like to go to, by weight.")
    ] = []


class PodAffinityTerm(Wire):
    """Pods, and the part of the cluster that counts as being together with them."""

    label_selector: Annotated[LabelSelector | None, about("The pods meant; none when unset.")] = (
        None
    )
    namespaces: Annotated[list[str], about("Their namespaces; this pod's when not given.")] = []
    namespace_selector: Annotated[
        LabelSelector | None, about("Their namespaces by label; an empty one means all.")
    ] = None
    topology_key: Annotated[
        str, about("Node label; equal values are one place.", required=True)
    ] = ""
    match_label_keys: Annotated[list[str], about("Labels whose values must equal this pod's.")] = []
    mismatch_label_keys: Annotated[
        list[str], about("Labels whose values must differ from this pod's.")
    ] = []


class WeightedPodAffinityTerm(Wire):
    """A pod affinity term that is liked, and how much."""

    weight: Annotated[int, about("From 1 to 100.", required=True, minimum=1, maximum=100)] = 0
    pod_affinity_term: Annotated[
        PodAffinityTerm, about("The pods and places meant.", required=True)
    ] = PodAffinityTerm()


class PodAffinity(Wire):
    """Pods to be near to, or (as podAntiAffinity) away from."""

    required_during_scheduling_ignored_during_execution: Annotated[
        list[PodAffinityTerm], about("What must hold" + _ABOUT_IGNORED)
    ] = []
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[WeightedPodAffinityTerm], about("What is liked, by weight.")
    ] = []


class Affinity(Wire):
    """All wishes about the place of a pod."""

    node_affinity: Annotated[NodeAffinity | None, about("Wishes about nodes.")] = None
    pod_affinity: Annotated[PodAffinity | None, about("Pods to be together with.")] = None
    pod_anti_affinity: Annotated[PodAffinity | None, about("Pods to be apart from.")] = None


class Toleration(Wire):
    """Node taints that the pod puts up with."""

    key: Annotated[str, about("Taint key; with operator Exists, empty means every taint.")] = ""
    operator: Annotated[
        str,
        about(
            "How value relates to the taint's; Equal when not given.",
            values=("Equal", "Exists", "Lt", "Gt"),
        ),
    ] = ""
    value: Annotated[str, about("Taint value; none for Exists.")] = ""
    effect: Annotated[
        str,
        about(
            "Effect to put up with; every one when not given.",
            values=("NoSchedule", "PreferNoSchedule", "NoExecute"),
        ),
    ] = ""
    toleration_seconds: Annotated[
        int | None, about("For NoExecute: how long to stay; for ever when not given.")
    ] = None


class TopologySpreadConstraint(Wire):
    """How evenly pods are to be spread over places."""

    max_skew: Annotated[
        int, about("Largest allowed difference between places.", required=True, minimum=1)
    ] = 0
    topology_key: Annotated[
        str, about("Node label; equal values are one place.", required=True)
    ] = ""
    when_unsatisfiable: Annotated[
        str,
        about("Wait, or go anyway.", required=True, values=("DoNotSchedule", "ScheduleAnyway")),
    ] = ""
    label_selector: Annotated[LabelSelector | None, about("The pods that are counted.")] = None
    min_domains: Annotated[
        int | None, about("Fewer places than this count as uneven.", minimum=1)
    ] = None
    node_affinity_policy: Annotated[
        str,
        about(
            "Do nodes the pod cannot go to count? Honor leaves them out.",
            values=("Honor", "Ignore"),
        ),
    ] = ""
    node_taints_policy: Annotated[
        str, about("Do tainted nodes count? Honor leaves them out.", values=("Honor", "Ignore"))
    ] = ""
    match_label_keys: Annotated[list[str], about("Labels whose values must equal this pod's.")] = []
