"""Saves before an eviction: what scheduler, operator and master write in annotations.

The scheduler writes the request on the PodGroup. The job's master reads it there, and writes its
answer on a ConfigMap of the job, which the operator copies to the PodGroup: the master may not
write to PodGroups, because their other annotations reserve nodes.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from gangline.api.meta.objects import Wire

SAVES_ANNOTATION = "gangline.dev/saves-on-request"
"""``true``: the gang has a checkpoint in memory, and its master answers requests to save one. On
the job's ConfigMap of facts by the master, on the PodGroup by the operator.
"""
SAVE_REQUEST_ANNOTATION = "gangline.dev/save-request"
"""On a PodGroup, by the scheduler: save now, because pods of this gang are to be evicted, as
JSON. It is removed when the evicted pods are gone or the eviction is withdrawn.
"""
SAVE_ANSWER_ANNOTATION = "gangline.dev/save-answer"
"""The answer to a request, as JSON; written as ``saves-on-request``."""
MIRRORED_ANNOTATIONS = (SAVES_ANNOTATION, SAVE_ANSWER_ANNOTATION)
"""Annotations that the operator copies from the ConfigMap to the PodGroup."""
MAX_MIRRORED_CHARS = 256
"""A longer value is not copied: users control what a master writes."""


class SaveRequestAnnotation(Wire):
    """The scheduler asks a gang to save before its pods are evicted."""

    id: str
    """Unique; an answer to another request is ignored."""
    seconds: float
    """The pods are evicted after this time, also without an answer."""
    deadline: datetime
    """The end of this time on the scheduler's clock; a request is void after it."""
    beneficiary: str = ""
    """``namespace/name`` of the gang that gets the resources."""


class SaveAnswerAnnotation(Wire):
    """A master's answer: the save is complete, or cannot be made."""

    id: str
    step: int | None = None
    """The step that is in storage now; None if none could be written."""


_DECODE_REQUEST = msgspec.json.Decoder(SaveRequestAnnotation).decode
_DECODE_ANSWER = msgspec.json.Decoder(SaveAnswerAnnotation).decode


def read_save_request(annotations: Mapping[str, str]) -> SaveRequestAnnotation | None:
    try:
        request = _DECODE_REQUEST(annotations.get(SAVE_REQUEST_ANNOTATION, ""))
    except (msgspec.DecodeError, ValueError):
        return None
    return request if request.deadline.tzinfo is not None else None


def read_save_answer(annotations: Mapping[str, str]) -> SaveAnswerAnnotation | None:
    """Return the answer; None without one, or if it cannot be parsed."""
    try:
        return _DECODE_ANSWER(annotations.get(SAVE_ANSWER_ANNOTATION, ""))
    except (msgspec.DecodeError, ValueError):
        return None
