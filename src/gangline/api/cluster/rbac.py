"""Role-based access control: roles, bindings, access reviews."""

from typing import Annotated

import msgspec

from gangline.api.meta.field_doc import field_doc
from gangline.api.meta.objects import LabelSelector, Object, Wire


class PolicyRule(Wire):
    """Verbs that are allowed on some resources or URLs."""

    verbs: Annotated[list[str], field_doc("get, list, create, ...; * for all.", required=True)] = []
    api_groups: Annotated[list[str], field_doc("Groups; empty text is core, * all.")] = []
    resources: Annotated[list[str], field_doc("Plurals, also pods/log; * for all.")] = []
    resource_names: Annotated[list[str], field_doc("Only these names; all when not given.")] = []
    non_resource_urls: Annotated[list[str], field_doc("Paths such as /healthz.")] = msgspec.field(
        name="nonResourceURLs", default_factory=list
    )


class AggregationRule(Wire):
    """Cluster roles whose rules are combined."""

    cluster_role_selectors: Annotated[list[LabelSelector], field_doc("Labels of the roles.")] = []


class Role(Object):
    """Rules within a namespace."""

    rules: Annotated[list[PolicyRule], field_doc("The rules.")] = []


class ClusterRole(Object):
    """Rules in all namespaces."""

    rules: Annotated[list[PolicyRule], field_doc("The rules.")] = []
    aggregation_rule: Annotated[
        AggregationRule | None, field_doc("Combine the rules of other roles.")
    ] = None


class RoleRef(Wire):
    """The role that a binding grants."""

    api_group: Annotated[str, field_doc("Group of the role.")] = ""
    kind: Annotated[str, field_doc("Role or ClusterRole.", required=True)] = ""
    name: Annotated[str, field_doc("Name of the role.", required=True)] = ""


class Subject(Wire):
    """A user, group or service account that is granted a role."""

    kind: Annotated[str, field_doc("User, Group or ServiceAccount.", required=True)] = ""
    api_group: Annotated[str, field_doc("Group of the subject.")] = ""
    name: Annotated[str, field_doc("Name of the subject.", required=True)] = ""
    namespace: Annotated[str, field_doc("Namespace of a ServiceAccount.")] = ""


class RoleBinding(Object):
    """Grants a role within a namespace."""

    subjects: Annotated[list[Subject], field_doc("Subjects that are granted the role.")] = []
    role_ref: Annotated[RoleRef, field_doc("The granted role.", required=True)] = RoleRef()


class ClusterRoleBinding(RoleBinding):
    """Grants a role in all namespaces."""
