"""Role-based access control: roles, bindings, access reviews."""

from typing import Annotated

import msgspec

from gangline.api.meta.field_doc import FreeForm, field_doc
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


class ResourceAttributes(Wire):
    """An access to a resource."""

    namespace: Annotated[str, field_doc("Namespace; empty means all.")] = ""
    verb: Annotated[str, field_doc("Verb.")] = ""
    group: Annotated[str, field_doc("API group.")] = ""
    version: Annotated[str, field_doc("API version.")] = ""
    resource: Annotated[str, field_doc("Plural.")] = ""
    subresource: Annotated[str, field_doc("Subresource, such as log.")] = ""
    name: Annotated[str, field_doc("Name; empty means all.")] = ""
    field_selector: Annotated[FreeForm | None, field_doc("Only these, by field.")] = None
    label_selector: Annotated[FreeForm | None, field_doc("Only these, by label.")] = None


class NonResourceAttributes(Wire):
    """An access to a path."""

    path: Annotated[str, field_doc("The path.")] = ""
    verb: Annotated[str, field_doc("Verb.")] = ""


class SubjectAccessReviewSpec(Wire):
    """The access in question, and the user."""

    resource_attributes: Annotated[
        ResourceAttributes | None, field_doc("Access to a resource.")
    ] = None
    non_resource_attributes: Annotated[
        NonResourceAttributes | None, field_doc("Access to a path.")
    ] = None
    user: Annotated[str, field_doc("Name of the user.")] = ""
    groups: Annotated[list[str], field_doc("Groups of the user.")] = []
    extra: Annotated[dict[str, list[str]], field_doc("Further attributes of the user.")] = {}
    uid: Annotated[str, field_doc("Unique id of the user.")] = ""


class SubjectAccessReviewStatus(Wire):
    """Whether the access is allowed."""

    allowed: Annotated[bool, field_doc("The access is allowed.", required=True)] = False
    denied: Annotated[bool, field_doc("The access is denied explicitly.")] = False
    reason: Annotated[str, field_doc("Why.")] = ""
    evaluation_error: Annotated[str, field_doc("Error during the evaluation.")] = ""


class SelfSubjectAccessReview(Object):
    """May the current user do this?"""

    spec: Annotated[
        SubjectAccessReviewSpec, field_doc("The access in question.", required=True)
    ] = SubjectAccessReviewSpec()
    status: Annotated[SubjectAccessReviewStatus, field_doc("The result.")] = (
        SubjectAccessReviewStatus()
    )


class SelfSubjectRulesReview(Object):
    """What may the current user do?"""

    spec: Annotated[FreeForm, field_doc("In which namespace.")] = {}
    status: Annotated[FreeForm, field_doc("The rules.")] = {}
