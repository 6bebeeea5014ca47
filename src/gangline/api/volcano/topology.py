"""HyperNode: nodes that are close together in the network, as in Volcano."""

from typing import Annotated

from gangline.api.meta.field_doc import field_doc
from gangline.api.meta.objects import Condition, LabelSelector, Object, Wire

GROUP = "topology.volcano.sh"
VERSION = "v1alpha1"


class ExactMatch(Wire):
    """A member by name."""

    name: Annotated[str, field_doc("Its name.", required=True)] = ""


class RegexMatch(Wire):
    """Members by a pattern of their names."""

    pattern: Annotated[str, field_doc("Regular expression found in the names.", required=True)] = ""


class MemberSelector(Wire):
    """Selects nodes or domains in one of three ways."""

    exact_match: Annotated[ExactMatch | None, field_doc("The member with this name.")] = None
    regex_match: Annotated[RegexMatch | None, field_doc("Members whose names match.")] = None
    label_match: Annotated[LabelSelector | None, field_doc("Nodes with these labels.")] = None


class HyperNodeMember(Wire):
    """Members of a network domain."""

    type: Annotated[
        str, field_doc("Nodes, or network domains.", required=True, values=("Node", "HyperNode"))
    ] = ""
    selector: Annotated[MemberSelector, field_doc("The members.", required=True)] = MemberSelector()


class HyperNodeSpec(Wire):
    """The members of a network domain."""

    tier: Annotated[
        int, field_doc("How far apart its nodes are: 1 is the closest.", required=True, minimum=0)
    ] = 0
    tier_name: Annotated[str, field_doc("Name of the tier, such as rack.", maxLength=253)] = ""
    members: Annotated[list[HyperNodeMember], field_doc("Its members.")] = []


class HyperNodeStatus(Wire):
    """The observed state of a network domain."""

    conditions: Annotated[list[Condition], field_doc("Current conditions.", keys=("type",))] = []
    node_count: Annotated[int, field_doc("Number of nodes.")] = 0


class HyperNode(Object):
    """A network domain: nodes that are close together."""

    spec: Annotated[HyperNodeSpec, field_doc("Its members.")] = HyperNodeSpec()
    status: Annotated[HyperNodeStatus, field_doc("Observed state.")] = HyperNodeStatus()
