"""HyperNode: nodes that are close together in the network, as in Volcano."""

from typing import Annotated

from gangline.api.describe import about
from gangline.api.meta import Condition, LabelSelector, Object, Wire

GROUP = "topology.volcano.sh"
VERSION = "v1alpha1"


class ExactMatch(Wire):
    """A member by name."""

    name: Annotated[str, about("Its name.", required=True)] = ""


class RegexMatch(Wire):
    """Members by a pattern of their names."""

    pattern: Annotated[str, about("Regular expression found in the names.", required=True)] = ""


class MemberSelector(Wire):
    """Selects nodes or domains in one of three ways."""

    exact_match: Annotated[ExactMatch | None, about("The member with this name.")] = None
    regex_match: Annotated[RegexMatch | None, about("Members whose names match.")] = None
    label_match: Annotated[LabelSelector | None, about("Nodes with these labels.")] = None


class HyperNodeMember(Wire):
    """Members of a network domain."""

    type: Annotated[
        str, about("Nodes, or network domains.", required=True, values=("Node", "HyperNode"))
    ] = ""
    selector: Annotated[MemberSelector, about("The members.", required=True)] = MemberSelector()


class HyperNodeSpec(Wire):
    """The members of a network domain."""

    tier: Annotated[
        int, about("How far apart its nodes are: 1 is the closest.", required=True, minimum=0)
    ] = 0
    tier_name: Annotated[str, about("Name of the tier, such as rack.", maxLength=253)] = ""
    members: Annotated[list[HyperNodeMember], about("Its members.")] = []


class HyperNodeStatus(Wire):
    """The observed state of a network domain."""

    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []
    node_count: Annotated[int, about("Number of nodes.")] = 0


class HyperNode(Object):
    """A network domain: nodes that are close together."""

    spec: Annotated[HyperNodeSpec, about("Its members.")] = HyperNodeSpec()
    status: Annotated[HyperNodeStatus, about("Observed state.")] = HyperNodeStatus()
