"""HyperNode: nodes that are close together in the network, as in Volcano."""

from typing import Annotated

from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import Condition, LabelSelector, Object, Wire

GROUP = "topology.volcano.sh"
VERSION = "v1alpha1"


class ExactMatch(Wire):
    """A member by name."""

    name: Annotated[str, doc("Its name.", required=True)] = ""


class RegexMatch(Wire):
    """Members by a pattern of their names."""

    pattern: Annotated[str, doc("Regular expression found in the names.", required=True)] = ""


class MemberSelector(Wire):
    """Selects nodes or domains in one of three ways."""

    exact_match: Annotated[ExactMatch | None, doc("The member with this name.")] = None
    regex_match: Annotated[RegexMatch | None, doc("Members whose names match.")] = None
    label_match: Annotated[LabelSelector | None, doc("Nodes with these labels.")] = None


class HyperNodeMember(Wire):
    """Members of a network domain."""

    type: Annotated[
        str, doc("Nodes, or network domains.", required=True, values=("Node", "HyperNode"))
    ] = ""
    selector: Annotated[MemberSelector, doc("The members.", required=True)] = MemberSelector()


class HyperNodeSpec(Wire):
    """The members of a network domain."""

    tier: Annotated[
        int, doc("How far apart its nodes are: 1 is the closest.", required=True, minimum=0)
    ] = 0
    tier_name: Annotated[str, doc("Name of the tier, such as rack.", maxLength=253)] = ""
    members: Annotated[list[HyperNodeMember], doc("Its members.")] = []


class HyperNodeStatus(Wire):
    """The observed state of a network domain."""

    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []
    node_count: Annotated[int, doc("Number of nodes.")] = 0


class HyperNode(Object):
    """A network domain: nodes that are close together."""

    spec: Annotated[HyperNodeSpec, doc("Its members.")] = HyperNodeSpec()
    status: Annotated[HyperNodeStatus, doc("Observed state.")] = HyperNodeStatus()
