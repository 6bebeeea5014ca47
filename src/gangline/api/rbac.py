"""Who may do what: roles, bindings, and the questions about them."""

from typing import Annotated

import msgspec

from gangline.api.describe import FreeForm, about
from gangline.api.meta import LabelSelector, Object, Wire


class PolicyRule(Wire):
    """Things that may be done to some resources."""

    verbs: Annotated[list[str], about("get, list, create, ...; * for all.", required=True)] = []
    api_groups: Annotated[list[str], about("Groups; empty text is core, * all.")] = []
    resources: Annotated[list[str], about("Plurals, also pods/log; * for all.")] = []
    resource_names: Annotated[list[str], about("Only these names; all when not given.")] = []
    non_resource_urls: Annotated[list[str], about("Paths such as /healthz.")] = msgspec.field(
        name="nonResourceURLs", default_factory=list
    )


class AggregationRule(Wire):
    """Cluster roles whose rules are gathered."""

    cluster_role_selectors: Annotated[list[LabelSelector], about("Labels of the roles.")] = []


class Role(Object):
    """Rules within a namespace."""

    rules: Annotated[list[PolicyRule], about("The rules.")] = []


class ClusterRole(Object):
    """Rules in all namespaces."""

    rules: Annotated[list[PolicyRule], about("The rules.")] = []
    aggregation_rule: Annotated[AggregationRule | None, about("Gather from others.")] = None


class RoleRef(Wire):
    """The role that is given."""

    api_group: Annotated[str, about("Group of the role.")] = ""
    kind: Annotated[str, about("Role or ClusterRole.", required=True)] = ""
    name: Annotated[str, about("Name of the role.", required=True)] = ""


class Subject(Wire):
    """Who is given a role."""

    kind: Annotated[str, about("User, Group or ServiceAccount.", required=True)] = ""
    api_group: Annotated[str, about("Group of the subject.")] = ""
    name: Annotated[str, about("Name of the subject.", required=True)] = ""
    namespace: Annotated[str, about("Namespace of a ServiceAccount.")] = ""


class RoleBinding(Object):
    """Gives a role within a namespace."""

    subjects: Annotated[list[Subject], about("To whom.")] = []
    role_ref: Annotated[RoleRef, about("Which role.", required=True)] = RoleRef()


class ClusterRoleBinding(RoleBinding):
    """Gives a role everywhere."""


class ResourceAttributes(Wire):
    """Something to be done to a resource."""

    namespace: Annotated[str, about("Where; empty means everywhere.")] = ""
    verb: Annotated[str, about("What to do.")] = ""
    group: Annotated[str, about("API group.")] = ""
    version: Annotated[str, about("API version.")] = ""
    resource: Annotated[str, about("Plural.")] = ""
    subresource: Annotated[str, about("Part of it, such as log.")] = ""
    name: Annotated[str, about("Name; empty means all.")] = ""
    field_selector: Annotated[FreeForm | None, about("Only these, by field.")] = None
    label_selector: Annotated[FreeForm | None, about("Only these, by label.")] = None


class NonResourceAttributes(Wire):
    """Something to be done to a path."""

    path: Annotated[str, about("The path.")] = ""
    verb: Annotated[str, about("What to do.")] = ""


class SubjectAccessReviewSpec(Wire):
    """The question, and about whom."""

    resource_attributes: Annotated[ResourceAttributes | None, about("To a resource.")] = None
    non_resource_attributes: Annotated[NonResourceAttributes | None, about("To a path.")] = None
    user: Annotated[str, about("About this user.")] = ""
    groups: Annotated[list[str], about("Groups of the user.")] = []
    extra: Annotated[dict[str, list[str]], about("Further traits of the user.")] = {}
    uid: Annotated[str, about("Unique id of the user.")] = ""


class SubjectAccessReviewStatus(Wire):
    """The answer."""

    allowed: Annotated[bool, about("It may be done.", required=True)] = False
    denied: Annotated[bool, about("It may certainly not be done.")] = False
    reason: Annotated[str, about("Why.")] = ""
    evaluation_error: Annotated[str, about("What went wrong while asking.")] = ""


class SelfSubjectAccessReview(Object):
    """May I do this?"""

    spec: Annotated[SubjectAccessReviewSpec, about("The question.", required=True)] = (
        SubjectAccessReviewSpec()
    )
    status: Annotated[SubjectAccessReviewStatus, about("The answer.")] = SubjectAccessReviewStatus()


class SelfSubjectRulesReview(Object):
    """What may I do?"""

    spec: Annotated[FreeForm, about("In which namespace.")] = {}
    status: Annotated[FreeForm, about("The rules.")] = {}
