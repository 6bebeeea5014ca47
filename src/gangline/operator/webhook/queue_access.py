"""The right to use a queue: whoever puts work into it needs the verb ``use`` on it.

The resource is ``queues`` of ``scheduling.volcano.sh``, the name is that of the queue, and the API
server decides by a SubjectAccessReview. A job, a PodGroup, or a pod whose annotations describe its
gang is reviewed when it is created, and when its queue changes. Controllers create pods for their
users: a pod may also use a queue by the right of its service account, which everybody who creates
pods in the namespace may choose.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gangline.api.cluster.admission import AdmissionResponse
from gangline.api.meta.json_objects import subobject
from gangline.api.meta.objects import Status
from gangline.api.resources import POD_GROUPS, PODS
from gangline.api.volcano.scheduling import (
    DEFAULT_QUEUE,
    GROUP,
    GROUP_MIN_MEMBER_ANNOTATION,
    GROUP_MIN_RESOURCES_ANNOTATION,
    GROUP_NAME_ANNOTATION,
    QUEUE_NAME_ANNOTATION,
)
from gangline.kube.client.client import ApiClient
from gangline.operator.model.framework import Framework
from gangline.operator.model.job import RawJob
from gangline.operator.webhook.review import ReviewRequest

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
VERB, QUEUES = "use", "queues"
_DESCRIBE_GANG = (
    QUEUE_NAME_ANNOTATION,
    GROUP_MIN_MEMBER_ANNOTATION,
    GROUP_MIN_RESOURCES_ANNOTATION,
)
_STORED = msgspec.json.Decoder(RawJob)

Manifest = Mapping[str, Any]
Subject = dict[str, Any]
"""A user in the form of a SubjectAccessReview."""


class QueueReader:
    """Reads the queue that an object uses."""

    def __init__(self, frameworks: Sequence[Framework]) -> None:
        self._frameworks = {
            (version, f.kind.kind): f for f in frameworks for version in f.kind.entry.api_versions
        }

    def queue_of(self, manifest: Manifest | None) -> str | None:
        """Return the queue of a job, a PodGroup or a pod; None: it names none, or is none of
        these.
        """
        if manifest is None:
            return None
        key = (str(manifest.get("apiVersion")), str(manifest.get("kind")))
        if key == (PODS.api_version, PODS.kind):
            return _queue_of_pod(manifest)
        if key == (POD_GROUPS.api_version, POD_GROUPS.kind):
            return _text(subobject(manifest, "spec").get("queue")) or DEFAULT_QUEUE
        framework = self._frameworks.get(key)
        if framework is None:
            return None
        try:
            stored = _STORED.decode(msgspec.json.encode(manifest))
        except msgspec.DecodeError:
            return None  # the job is refused as invalid
        return framework.read(stored).job.policy.scheduling.queue or DEFAULT_QUEUE


class QueueAccess:
    """Reviews whether users may use the queues that their objects name."""

    def __init__(self, client: ApiClient, frameworks: Sequence[Framework]) -> None:
        self._client, self._reader = client, QueueReader(frameworks)

    async def review(self, request: ReviewRequest) -> AdmissionResponse:
        """Allow an object unless its user has no right to its queue.

        Raises:
            KubeError: the API server does not answer.
        """
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
