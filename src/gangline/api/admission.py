"""Admission webhooks: their configurations, and the question and answer that pass on the wire."""

from typing import Annotated, Any

import msgspec

from gangline.api.describe import FreeForm, about
from gangline.api.meta import LabelSelector, Object, Status, Wire

GROUP = "admissionregistration.k8s.io"
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT", "*")
SCOPES = ("Cluster", "Namespaced", "*")


class ServiceReference(Wire):
    """A service of the cluster that answers."""

    namespace: Annotated[str, about("Namespace of the service.", required=True)] = ""
    name: Annotated[str, about("Name of the service.", required=True)] = ""
    path: Annotated[str, about("Path of the URL.")] = ""
    port: Annotated[int, about("Port of the service; 443 when not given.")] = 443


class WebhookClientConfig(Wire):
    """Where a webhook answers: by URL or by service, not both."""

    url: Annotated[str, about("Address, https://host[:port]/path.")] = ""
    service: Annotated[ServiceReference | None, about("Service of the cluster.")] = None
    ca_bundle: Annotated[
        str, about("Certificates of the authority to trust, PEM in base64.", format="byte")
    ] = msgspec.field(name="caBundle", default="")


class RuleWithOperations(Wire):
    """Operations on resources that a webhook wants to see."""

    operations: Annotated[list[str], about("CREATE, UPDATE, DELETE, CONNECT or *.")] = []
    api_groups: Annotated[list[str], about("Groups; * means all.")] = []
    api_versions: Annotated[list[str], about("Versions; * means all.")] = []
    resources: Annotated[list[str], about("Such as pods, pods/status, pods/* or */*.")] = []
    scope: Annotated[str, about("Cluster, Namespaced or * (both).")] = "*"


class MatchCondition(Wire):
    """An expression that must hold of a request."""

    name: Annotated[str, about("Name of the condition.", required=True)] = ""
    expression: Annotated[str, about("Expression in CEL.", required=True)] = ""


class Webhook(Wire):
    """One webhook of either sort: when it is asked, where, and what its silence means."""

    name: Annotated[str, about("Full name, such as jobs.example.com.", required=True)] = ""
    client_config: Annotated[WebhookClientConfig, about("Where it answers.", required=True)] = (
        WebhookClientConfig()
    )
    rules: Annotated[list[RuleWithOperations], about("What it wants to see.")] = []
    failure_policy: Annotated[
        str, about("What a failed call means; Fail when not given.", values=("Ignore", "Fail"))
    ] = "Fail"
    match_policy: Annotated[
        str, about("Whether other versions match too.", values=("Exact", "Equivalent"))
    ] = "Equivalent"
    namespace_selector: Annotated[LabelSelector, about("Namespaces it wants.")] = LabelSelector()
    object_selector: Annotated[LabelSelector, about("Objects it wants.")] = LabelSelector()
    side_effects: Annotated[
        str, about("What else a call changes.", required=True, values=("None", "NoneOnDryRun"))
    ] = ""
    timeout_seconds: Annotated[int, about("Seconds it may take, 1 to 30; 10.")] = 10
    admission_review_versions: Annotated[
        list[str], about("Versions of AdmissionReview that it reads.", required=True)
    ] = []
    match_conditions: Annotated[
        list[MatchCondition], about("Not supported by this server.", keys=("name",))
    ] = []


class ValidatingWebhook(Webhook):
    """A webhook that allows or denies."""


class MutatingWebhook(Webhook):
    """A webhook that may change what is written."""

    reinvocation_policy: Annotated[
        str,
        about("Whether it is asked again after others' changes.", values=("Never", "IfNeeded")),
    ] = "Never"


class ValidatingWebhookConfiguration(Object):
    """Webhooks that allow or deny writes."""

    webhooks: Annotated[list[ValidatingWebhook], about("Them.", keys=("name",))] = []


class MutatingWebhookConfiguration(Object):
    """Webhooks that may change what is written, asked one after the other."""

    webhooks: Annotated[list[MutatingWebhook], about("Them.", keys=("name",))] = []


class GroupVersionKind(Wire, omit_defaults=False):
    """A kind in a version."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(Wire, omit_defaults=False):
    """A resource in a version."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(Wire):
    """Who makes a request."""

    username: str = ""
    uid: str = ""
    groups: list[str] = []


class AdmissionRequest(Wire, omit_defaults=False):
    """What is asked: may this be written so?"""

    uid: str
    kind: GroupVersionKind
    resource: GroupVersionResource
    request_kind: GroupVersionKind
    request_resource: GroupVersionResource
    operation: str
    user_info: UserInfo
    name: str | msgspec.UnsetType = msgspec.UNSET
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    sub_resource: str | msgspec.UnsetType = msgspec.UNSET
    request_sub_resource: str | msgspec.UnsetType = msgspec.UNSET
    object: FreeForm | None = None
    old_object: FreeForm | None = None
    dry_run: bool = False
    options: FreeForm | None = None


class AdmissionResponse(Wire):
    """What a webhook says to it."""

    uid: str = ""
    allowed: bool = False
    status: Status | None = None
    patch: str | None = None
    patch_type: str | None = None
    audit_annotations: dict[str, str] | None = None
    warnings: list[str] | None = None


class AdmissionReview(Wire):
    """The envelope of both."""

    api_version: str = ""
    kind: str = ""
    request: dict[str, Any] | None = None
    response: AdmissionResponse | None = None
