"""Copies what a job's master says about saves before an eviction to the job's PodGroup.

Masters may not write to PodGroups, whose other annotations reserve nodes. So only these two
annotations are copied, and only valid values: users control what a master writes.
"""

from collections.abc import Iterable

from gangline.api.meta.objects import Object
from gangline.api.volcano.eviction_saves import (
    MAX_MIRRORED_CHARS,
    MIRRORED_ANNOTATIONS,
    SAVE_ANSWER_ANNOTATION,
    SAVES_ANNOTATION,
    read_save_answer,
)
from gangline.operator.model import labels
from gangline.operator.model.plan import OwnedObject, PlannedPatch, TargetKind


def mirror_saves(group: Object, owned: Iterable[OwnedObject]) -> PlannedPatch | None:
    """Return the patch that makes the group's annotations equal to those of its ConfigMaps."""
    if group.metadata.deletion_timestamp is not None:
        return None
    desired: dict[str, str] = {}
    for item in owned:
        if item.target is TargetKind.CONFIG_MAP:
            desired |= _valid(item.metadata.annotations)
    operations = labels.annotation_operations(
        group.metadata.annotations, desired, MIRRORED_ANNOTATIONS
    )
    return (
        PlannedPatch(TargetKind.POD_GROUP, group.metadata.name, operations) if operations else None
    )


def _valid(annotations: dict[str, str]) -> dict[str, str]:
    valid = {
        key: annotations[key]
        for key in MIRRORED_ANNOTATIONS
        if len(annotations.get(key, "")) in range(1, MAX_MIRRORED_CHARS + 1)
    }
    if SAVE_ANSWER_ANNOTATION in valid and read_save_answer(valid) is None:
        del valid[SAVE_ANSWER_ANNOTATION]
    if valid.get(SAVES_ANNOTATION) not in (None, "true"):
        del valid[SAVES_ANNOTATION]
    return valid
