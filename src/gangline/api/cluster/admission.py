"""Admission webhooks: their configurations, and the AdmissionReview messages."""

from typing import Annotated, Any

import msgspec

from gangline.api.meta.field_doc import FreeForm, doc
from gangline.api.meta.objects import LabelSelector, Object, Status, Wire

GROUP = "admissionregistration.k8s.io"
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT", "*")
SCOPES = ("Cluster", "Namespaced", "*")


class ServiceReference(Wire):
    """The Service that serves a webhook."""

    namespace: Annotated[str, doc("Namespace of the service.", required=True)] = ""
    name: Annotated[str, doc("Name of the service.", required=True)] = ""
    path: Annotated[str, doc("Path of the URL.")] = ""
    port: Annotated[int, doc("Port of the service; 443 when not given.")] = 443


class WebhookClientConfig(Wire):
    """How to reach a webhook: by URL or by Service, not both."""

    url: Annotated[str, doc("Address, https://host[:port]/path.")] = ""
    service: Annotated[ServiceReference | None, doc("Service of the cluster.")] = None
    ca_bundle: Annotated[str, doc("Trusted CA certificates, PEM in base64.", format="byte")] = (
        msgspec.field(name="caBundle", default="")
    )


class RuleWithOperations(Wire):
    """Operations on resources for which a webhook is called."""

    operations: Annotated[list[str], doc("CREATE, UPDATE, DELETE, CONNECT or *.")] = []
    api_groups: Annotated[list[str], doc("Groups; * means all.")] = []
    api_versions: Annotated[list[str], doc("Versions; * means all.")] = []
    resources: Annotated[list[str], doc("Such as pods, pods/status, pods/* or */*.")] = []
    scope: Annotated[str, doc("Cluster, Namespaced or * (both).")] = "*"


class MatchCondition(Wire):
    """An expression that must be true for a request."""

    name: Annotated[str, doc("Name of the condition.", required=True)] = ""
    expression: Annotated[str, doc("Expression in CEL.", required=True)] = ""


class Webhook(Wire):
    """One webhook: which requests it handles, its address, and what a failed call means."""

    name: Annotated[str, doc("Full name, such as jobs.example.com.", required=True)] = ""
    client_config: Annotated[WebhookClientConfig, doc("Address of the webhook.", required=True)] = (
        WebhookClientConfig()
    )
    rules: Annotated[list[RuleWithOperations], doc("Requests it is called for.")] = []
    failure_policy: Annotated[
        str, doc("Result of a failed call; Fail when not given.", values=("Ignore", "Fail"))
    ] = "Fail"
    match_policy: Annotated[
        str, doc("Whether other versions match too.", values=("Exact", "Equivalent"))
    ] = "Equivalent"
    namespace_selector: Annotated[LabelSelector, doc("Namespaces it is called for.")] = (
        LabelSelector()
    )
    object_selector: Annotated[LabelSelector, doc("Objects it is called for.")] = LabelSelector()
    side_effects: Annotated[
        str, doc("Side effects of a call.", required=True, values=("None", "NoneOnDryRun"))
    ] = ""
    timeout_seconds: Annotated[int, doc("Timeout in seconds, 1 to 30; 10 when not given.")] = 10
    admission_review_versions: Annotated[
        list[str], doc("Versions of AdmissionReview that it supports.", required=True)
    ] = []
    match_conditions: Annotated[
        list[MatchCondition],
        doc("Conditions on a request, all of which must be true.", keys=("name",)),
    ] = []


class ValidatingWebhook(Webhook):
    """A webhook that allows or denies a request."""


class MutatingWebhook(Webhook):
    """A webhook that may change the object of a request."""

    reinvocation_policy: Annotated[
        str,
        doc(
            "Whether it is called again after other webhooks' changes.",
            values=("Never", "IfNeeded"),
        ),
    ] = "Never"


class ValidatingWebhookConfiguration(Object):
    """Webhooks that allow or deny writes."""

    webhooks: Annotated[list[ValidatingWebhook], doc("The webhooks.", keys=("name",))] = []


class MutatingWebhookConfiguration(Object):
    """Webhooks that may change objects before they are written, called in order."""

    webhooks: Annotated[list[MutatingWebhook], doc("The webhooks.", keys=("name",))] = []


class GroupVersionKind(Wire, omit_defaults=False):
    """A kind with its group and version."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(Wire, omit_defaults=False):
    """A resource with its group and version."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(Wire):
    """The user that sends a request."""

    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class AdmissionRequest(Wire, omit_defaults=False):
    """The request of an AdmissionReview: may this object be written?"""

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
    """The response of a webhook to an AdmissionRequest."""

    uid: str = ""
    allowed: bool = False
    status: Status | None = None
    patch: str | None = None
    patch_type: str | None = None
    audit_annotations: dict[str, str] | None = None
    warnings: list[str] | None = None


class AdmissionReview(Wire):
    """The envelope of an admission request or response."""

    api_version: str = ""
    kind: str = ""
    request: dict[str, Any] | None = None
    response: AdmissionResponse | None = None
