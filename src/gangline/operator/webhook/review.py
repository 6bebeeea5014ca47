"""The response to an admission review, as a function of the review, and the right to use a queue.

``validate`` checks a job and lists warnings, ``mutate`` returns its defaults. The response is the
same on every replica of the operator, in a dry run, and on repetition. Only new errors count
against an update: a stored job that is invalid (because it is older than a rule) can still get a
label, lose a finalizer, be suspended or be fixed step by step. A job that is being deleted can be
changed in any way.

A user who puts work into a queue needs the verb ``use`` on ``queues`` of ``scheduling.volcano.sh``;
a SubjectAccessReview decides. A job, a PodGroup, or a pod whose annotations describe its gang is
reviewed when it is created, and when its queue changes. A pod may also use a queue by the right of
its service account, because controllers create pods for their users.
"""

import base64
import copy
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gangline.api.cluster.admission import AdmissionResponse, UserInfo
from gangline.api.job_resources import JOB_KINDS
from gangline.api.jobs.kind import JobKind
from gangline.api.meta.json_objects import subobject
from gangline.api.meta.objects import Status, StatusCause, StatusDetails, Wire
from gangline.api.resources import KUBERNETES_POD_GROUPS, POD_GROUPS, PODS
from gangline.api.schema.field_error import FieldError, format_value
from gangline.api.validation.validate import ManifestCheck, check_manifest
from gangline.api.volcano.scheduling import (
    DEFAULT_QUEUE,
    GROUP,
    GROUP_MIN_MEMBER_ANNOTATION,
    GROUP_MIN_RESOURCES_ANNOTATION,
    GROUP_NAME_ANNOTATION,
    QUEUE_NAME_ANNOTATION,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.operator.model.framework import Framework
from gangline.operator.webhook.defaults import frameworks_by_kind, read_manifest

API_VERSION = "admission.k8s.io/v1"
SCALE = "scale"
"""The subresource that is reviewed besides jobs."""
MAX_CAUSES = 100
"""Number of errors in one response."""
MAX_WARNINGS = 15
DEFAULTED_FIELDS = (".replicas", ".restartPolicy", ".cleanPodPolicy")
MAX_WARNING_LENGTH = 256
"""The API server truncates longer warnings, and drops those beyond 4,096 characters in total."""

Manifest = Mapping[str, Any]
DefaultsFunction = Callable[[Manifest], Sequence[Mapping[str, Any]]]
"""Lists the JSON patch operations that write a job's defaults into it."""

_REASONS = {"is missing": "FieldValueRequired", "is not allowed": "FieldValueNotSupported"}


class InvalidReview(Exception):
    """The body is no admission review; the message gives the reason."""


class ReviewedResource(Wire):
    group: str = ""
    resource: str = ""

    def names(self, kind: JobKind) -> bool:
        return (self.group, self.resource) == (kind.resource.group, kind.resource.plural)


class ReviewRequest(Wire):
    """The fields of a review's request that the response depends on."""

    uid: str = ""
    operation: str = ""
    sub_resource: str = ""
    resource: ReviewedResource = ReviewedResource()
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None

    @property
    def is_applicable(self) -> bool:
        """True if the request creates or updates an object that is not being deleted."""
        writes = self.operation in ("CREATE", "UPDATE") and not self.sub_resource
        return writes and not subobject(self.object, "metadata").get("deletionTimestamp")

    @property
    def has_kind(self) -> bool:
        named = self.object or {}
        return isinstance(named.get("apiVersion"), str) and isinstance(named.get("kind"), str)

    @property
    def spec_changed(self) -> bool:
        if self.object is None or self.old_object is None:
            return True
        return bool(self.object.get("spec") != self.old_object.get("spec"))


class _Review(Wire):
    api_version: str = ""
    kind: str = ""
    request: ReviewRequest | None = None


_DECODER = msgspec.json.Decoder(_Review)


def parse_review(body: bytes) -> ReviewRequest:
    """Parse the request of a review. Raises InvalidReview: the body contains none."""
    try:
        review = _DECODER.decode(body)
    except RecursionError as error:
        raise InvalidReview("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidReview(f"the body is no AdmissionReview: {error}") from error
    if (review.api_version, review.kind) != (API_VERSION, "AdmissionReview"):
        given = f"{review.kind or 'nothing'} of {review.api_version or 'no version'}"
        raise InvalidReview(
            f"the body is {format_value(given)}, not AdmissionReview of {API_VERSION}"
        )
    if review.request is None or not review.request.uid:
        raise InvalidReview("the review has no request with a uid")
    return review.request


def format_review(response: AdmissionResponse) -> bytes:
    # The struct omits fields that are False; an explicit False is clearer to readers of a log.
    fields = {"allowed": response.allowed, **msgspec.to_builtins(response)}
    review = {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": fields}
    return msgspec.json.encode(review)


def validate(request: ReviewRequest) -> AdmissionResponse:
    """Validate a job: deny with all errors, or allow with warnings."""
    if not request.is_applicable:
        return AdmissionResponse(uid=request.uid, allowed=True)
    if request.object is None or not request.has_kind:
        return _bad_request(request.uid, "the request has no object with apiVersion and kind")
    try:
        old = request.old_object
        before = ManifestCheck() if old is None else check_manifest(old, strict=False)
        after = check_manifest(request.object, strict=False, old=before.job)
        errors = [error for error in after.errors if error not in before.errors]
        # An update of other fields does not repeat the warnings.
        warnings = _new_warnings(before, after) if request.spec_changed else None
    except RecursionError:
        return _bad_request(request.uid, "the object is nested too deeply: take levels out of it")
    if errors:
        return _deny(request, errors)
    return AdmissionResponse(uid=request.uid, allowed=True, warnings=warnings or None)


def mutate(request: ReviewRequest, defaults_for: DefaultsFunction) -> AdmissionResponse:
    """Return the defaults of a job whose spec is written. Never denies: validation does."""
    answer = AdmissionResponse(uid=request.uid, allowed=True)
    if request.object is None or not request.has_kind:
        return answer
    try:
        writes = request.is_applicable and request.spec_changed
        operations = defaults_for(request.object) if writes else ()
    except RecursionError:
        return answer
    if not operations:
        return answer
    patch = base64.b64encode(msgspec.json.encode(operations)).decode()
    return msgspec.structs.replace(answer, patch=patch, patch_type="JSONPatch")


def _new_warnings(before: ManifestCheck, after: ManifestCheck) -> list[str]:
    earlier = set(map(str, before.warnings))
    # The webhook has written the defaults of these fields: the user may not have given them.
    written = (
        warning
        for warning in after.warnings
        if warning.value is not None or not warning.path.endswith(DEFAULTED_FIELDS)
    )
    texts = [text for text in dict.fromkeys(map(str, written)) if text not in earlier]
    return [
        text if len(text) <= MAX_WARNING_LENGTH else f"{text[: MAX_WARNING_LENGTH - 1]}…"
        for text in texts[:MAX_WARNINGS]
    ]


def _deny(question: ReviewRequest, errors: Sequence[FieldError]) -> AdmissionResponse:
    """Deny in the format of the API server's own validation, which clients can parse."""
    manifest = question.object or {}
    kind, group = str(manifest.get("kind")), str(manifest.get("apiVersion")).partition("/")[0]
    name = question.name or str(subobject(manifest, "metadata").get("name") or "")
    messages = [str(error) for error in errors[:MAX_CAUSES]]
    if len(errors) > MAX_CAUSES:
        messages.append(f"and {len(errors) - MAX_CAUSES} more")
    listed = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
    causes = [
        StatusCause(
            error.reason or _REASONS.get(error.problem, "FieldValueInvalid"),
            str(error).removeprefix(f"{error.path}: "),
            error.path,
        )
        for error in errors[:MAX_CAUSES]
    ]
    status = Status(
        status="Failure",
        reason="Invalid",
        code=422,
        message=f"{kind}.{group} {msgspec.json.encode(name).decode()} is invalid: {listed}",
        details=StatusDetails(name=name, group=group, kind=kind, causes=causes),
    )
    return AdmissionResponse(uid=question.uid, allowed=False, status=status)


def _bad_request(uid: str, why: str) -> AdmissionResponse:
    status = Status(status="Failure", reason="BadRequest", code=400, message=why)
    return AdmissionResponse(uid=uid, allowed=False, status=status)


ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
VERB, QUEUES = "use", "queues"
_DESCRIBE_GANG = (
    QUEUE_NAME_ANNOTATION,
    GROUP_MIN_MEMBER_ANNOTATION,
    GROUP_MIN_RESOURCES_ANNOTATION,
)
Subject = dict[str, Any]
"""A user in the form of a SubjectAccessReview."""


class JobValidator:
    """Validates jobs, and their change by the scale subresource.

    The review of such a change has only the number of replicas, so the job itself is read.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def review(
        self, request: ReviewRequest
    ) -> AdmissionResponse | Coroutine[Any, Any, AdmissionResponse]:
        return self._review_scale(request) if request.sub_resource == SCALE else validate(request)

    async def _review_scale(self, request: ReviewRequest) -> AdmissionResponse:
        reviewed = request.resource
        kind = next((kind for kind in JOB_KINDS if kind.is_scalable and reviewed.names(kind)), None)
        try:
            if kind is None:
                return AdmissionResponse(uid=request.uid, allowed=True)
            stored = replace(kind.resource, type=dict[str, Any])
            job = await self._client.get(stored, request.name, request.namespace)
        except NotFound:
            return AdmissionResponse(uid=request.uid, allowed=True)
        replicas = subobject(request.object, "spec").get("replicas", 0)
        return validate(
            msgspec.structs.replace(
                request, sub_resource="", old_object=job, object=_scaled(job, kind, replicas)
            )
        )


def _scaled(job: dict[str, Any], kind: JobKind, replicas: object) -> dict[str, Any]:
    *parents, field = kind.scale_path
    changed = copy.deepcopy(job)
    target = changed
    for name in parents:
        target = target.setdefault(name, {})
    target[field] = replicas
    return changed


class QueueReader:
    def __init__(self, frameworks: Sequence[Framework]) -> None:
        self._frameworks = frameworks_by_kind(frameworks)

    def queue_of(self, manifest: Manifest | None) -> str | None:
        """Return the queue of a job, a PodGroup or a pod; None without one, and for other kinds."""
        if manifest is None:
            return None
        key = (str(manifest.get("apiVersion")), str(manifest.get("kind")))
        if key == (PODS.api_version, PODS.kind):
            return _queue_of_pod(manifest)
        if key == (KUBERNETES_POD_GROUPS.api_version, KUBERNETES_POD_GROUPS.kind):
            # Without the annotation that of its pods decides, which is reviewed with them.
            annotations = subobject(manifest, "metadata", "annotations")
            return _text(annotations.get(QUEUE_NAME_ANNOTATION)) or None
        if key == (POD_GROUPS.api_version, POD_GROUPS.kind):
            return _text(subobject(manifest, "spec").get("queue")) or DEFAULT_QUEUE
        framework = self._frameworks.get(key)
        if framework is None:
            return None
        reading = read_manifest(framework, manifest)
        if reading is None:
            return None  # the job is refused as invalid
        return reading.job.policy.scheduling.queue or DEFAULT_QUEUE


class QueueAccess:
    """Reviews whether users may use the queues that their objects name."""

    def __init__(self, client: ApiClient, frameworks: Sequence[Framework]) -> None:
        self._client, self._reader = client, QueueReader(frameworks)

    async def review(self, request: ReviewRequest) -> AdmissionResponse:
        answer = AdmissionResponse(uid=request.uid, allowed=True)
        if not request.is_applicable:
            return answer
        queue = self._reader.queue_of(request.object)
        if queue is None or queue == self._reader.queue_of(request.old_object):
            return answer
        for subject in _subjects(request):
            if await self._may_use(subject, queue):
                return answer
        return _forbid(request, queue)

    async def _may_use(self, subject: Subject, queue: str) -> bool:
        attributes = {"verb": VERB, "group": GROUP, "resource": QUEUES, "name": queue}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**subject, "resourceAttributes": attributes},
        }
        reviewed = await self._client.request_json("POST", ACCESS_REVIEWS, body=review)
        return subobject(reviewed, "status").get("allowed") is True


def _subjects(request: ReviewRequest) -> list[Subject]:
    """Return the users by whose right the object may use its queue."""
    user = request.user_info
    subjects: list[Subject] = [
        {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
    ]
    manifest = request.object or {}
    if manifest.get("kind") == PODS.kind:
        account = _text(subobject(manifest, "spec").get("serviceAccountName")) or "default"
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{request.namespace}"]
        subjects.append(
            {
                "user": f"system:serviceaccount:{request.namespace}:{account}",
                "groups": [*groups, "system:authenticated"],
            }
        )
    return subjects


def _queue_of_pod(manifest: Manifest) -> str | None:
    """Return the queue that a pod's annotations name; None: its PodGroup or the default decides."""
    annotations = subobject(manifest, "metadata", "annotations")
    if annotations.get(GROUP_NAME_ANNOTATION) or not any(
        name in annotations for name in _DESCRIBE_GANG
    ):
        return None
    return _text(annotations.get(QUEUE_NAME_ANNOTATION)) or DEFAULT_QUEUE


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _forbid(request: ReviewRequest, queue: str) -> AdmissionResponse:
    status = Status(
        status="Failure",
        reason="Forbidden",
        code=403,
        message=(
            f"user {request.user_info.username!r} may not use the queue {queue!r}: this requires "
            f"the verb {VERB!r} on the resource {QUEUES!r} of this name in the API group {GROUP!r}"
        ),
    )
    return AdmissionResponse(uid=request.uid, allowed=False, status=status)
