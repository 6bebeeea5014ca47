"""Role-based access control: roles, bindings, access reviews."""

from typing import Annotated

import msgspec

from gangline.api.describe import FreeForm, about
from gangline.api.meta import LabelSelector, Object, Wire


class PolicyRule(Wire):
    """Verbs that are allowed on some resources or URLs."""

    verbs: Annotated[list[str], about("get, list, create, ...; * for all.", required=True)] = []
    api_groups: Annotated[list[str], about("Groups; empty text is core, * all.")] = []
    resources: Annotated[list[str], about("Plurals, also pods/log; * for all.")] = []
    resource_names: Annotated[list[str], about("Only these names; all when not given.")] = []
    non_resource_urls: Annotated[list[str], about("Paths such as /healthz.")] = msgspec.field(
        name="nonResourceURLs", default_factory=list
    )


class AggregationRule(Wire):
    """Cluster roles whose rules are combined."""

    cluster_role_selectors: Annotated[list[LabelSelector], about("Labels of the roles.")] = []


class Role(Object):
    """Rules within a namespace."""

    rules: Annotated[list[PolicyRule], about("The rules.")] = []


class ClusterRole(Object):
    """Rules in all namespaces."""

    rules: Annotated[list[PolicyRule], about("The rules.")] = []
    aggregation_rule: Annotated[
        AggregationRule | None, about("Combine the rules of other roles.")
    ] = None


class RoleRef(Wire):
    """The role that a binding grants."""

    api_group: Annotated[str, about("Group of the role.")] = ""
    kind: Annotated[str, about("Role or ClusterRole.", required=True)] = ""
    name: Annotated[str, about("Name of the role.", required=True)] = ""


class Subject(Wire):
    """A user, group or service account that is granted a role."""

    kind: Annotated[str, about("User, Group or ServiceAccount.", required=True)] = ""
    api_group: Annotated[str, about("Group of the subject.")] = ""
    name: Annotated[str, about("Name of the subject.", required=True)] = ""
    namespace: Annotated[str, about("Namespace of a ServiceAccount.")] = ""


class RoleBinding(Object):
    """Grants a role within a namespace."""

    subjects: Annotated[list[Subject], about("Subjects that are granted the role.")] = []
    role_ref: Annotated[RoleRef, about("The granted role.", required=True)] = RoleRef()


class ClusterRoleBinding(RoleBinding):
    """Grants a role in all namespaces."""


class ResourceAttributes(Wire):
    """An access to a resource."""

    namespace: Annotated[str, about("Namespace; empty means all.")] = ""
    verb: Annotated[str, about("Verb.")] = ""
    group: Annotated[str, about("API group.")] = ""
    version: Annotated[str, about("API version.")] = ""
    resource: Annotated[str, about("Plural.")] = ""
    subresource: Annotated[str, about("Subresource, such as log.")] = ""
    name: Annotated[str, about("Name; empty means all.")] = ""
    field_selector: Annotated[FreeForm | None, about("Only these, by field.")] = None
    label_selector: Annotated[FreeForm | None, about("Only these, by label.")] = None


class NonResourceAttributes(Wire):
    """An access to a path."""

    path: Annotated[str, about("The path.")] = ""
    verb: Annotated[str, about("Verb.")] = ""


class SubjectAccessReviewSpec(Wire):
    """The access in question, and the user."""

    resource_attributes: Annotated[ResourceAttributes | None, about("Access to a resource.")] = None
    non_resource_attributes: Annotated[NonResourceAttributes | None, about("Access to a path.")] = (
        None
    )
    user: Annotated[str, about("Name of the user.")] = ""
    groups: Annotated[list[str], about("Groups of the user.")] = []
    extra: Annotated[dict[str, list[str]], about("Further attributes of the user.")] = {}
    uid: Annotated[str, about("Unique id of the user.")] = ""


class SubjectAccessReviewStatus(Wire):
    """Whether the access is allowed."""

    allowed: Annotated[bool, about("The access is allowed.", required=True)] = False
    denied: Annotated[bool, about("The access is denied explicitly.")] = False
    reason: Annotated[str, about("Why.")] = ""
    evaluation_error: Annotated[str, about("Error during the evaluation.")] = ""


class SelfSubjectAccessReview(Object):
    """May the current user do this?"""

    spec: Annotated[SubjectAccessReviewSpec, about("The access in question.", required=True)] = (
        SubjectAccessReviewSpec()
    )
    status: Annotated[SubjectAccessReviewStatus, about("The result.")] = SubjectAccessReviewStatus()


class SelfSubjectRulesReview(Object):
    """What may the current user do?"""

    spec: Annotated[FreeForm, about("In which namespace.")] = {}
    status: Annotated[FreeForm, about("The rules.")] = {}
