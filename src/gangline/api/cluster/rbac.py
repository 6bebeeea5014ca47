"""Role-based access control: roles, bindings, access reviews."""

from typing import Annotated

import msgspec

from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import LabelSelector, Object, Wire


class PolicyRule(Wire):
    """Verbs that are allowed on some resources or URLs."""

    verbs: Annotated[list[str], doc("get, list, create, ...; * for all.", required=True)] = []
    api_groups: Annotated[list[str], doc("Groups; empty text is core, * all.")] = []
    resources: Annotated[list[str], doc("Plurals, also pods/log; * for all.")] = []
    resource_names: Annotated[list[str], doc("Only these names; all when not given.")] = []
    non_resource_urls: Annotated[list[str], doc("Paths such as /healthz.")] = msgspec.field(
        name="nonResourceURLs", default_factory=list
    )


class AggregationRule(Wire):
    """Cluster roles whose rules are combined."""

    cluster_role_selectors: Annotated[list[LabelSelector], doc("Labels of the roles.")] = []


class Role(Object):
    """Rules within a namespace."""

    rules: Annotated[list[PolicyRule], doc("The rules.")] = []


class ClusterRole(Object):
    """Rules in all namespaces."""

    rules: Annotated[list[PolicyRule], doc("The rules.")] = []
    aggregation_rule: Annotated[
        AggregationRule | None, doc("Combine the rules of other roles.")
    ] = None


class RoleRef(Wire):
    """The role that a binding grants."""

    api_group: Annotated[str, doc("Group of the role.")] = ""
    kind: Annotated[str, doc("Role or ClusterRole.", required=True)] = ""
    name: Annotated[str, doc("Name of the role.", required=True)] = ""


class Subject(Wire):
    """A user, group or service account that is granted a role."""

    kind: Annotated[str, doc("User, Group or ServiceAccount.", required=True)] = ""
    api_group: Annotated[str, doc("Group of the subject.")] = ""
    name: Annotated[str, doc("Name of the subject.", required=True)] = ""
    namespace: Annotated[str, doc("Namespace of a ServiceAccount.")] = ""


class RoleBinding(Object):
    """Grants a role within a namespace."""

    subjects: Annotated[list[Subject], doc("Subjects that are granted the role.")] = []
    role_ref: Annotated[RoleRef, doc("The granted role.", required=True)] = RoleRef()


class ClusterRoleBinding(RoleBinding):
    """Grants a role in all namespaces."""
