"""The PodGroup gets what the job's master says about saves, and nothing else."""

import pytest

from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.eviction_saves import (
    SAVE_ANSWER_ANNOTATION,
    SAVE_REQUEST_ANNOTATION,
    SAVES_ANNOTATION,
)
from gangline.api.volcano.scheduling import RESERVED_ANNOTATION, PodGroup
from gangline.operator.model.plan import OwnedObject
from gangline.operator.policies.eviction_saves import mirror_saves

ANSWER = '{"id":"first","step":7}'
SAVES_PATH = "/metadata/annotations/gangline.dev~1saves-on-request"
ANSWER_PATH = "/metadata/annotations/gangline.dev~1save-answer"


def group(**annotations: str) -> PodGroup:
    return PodGroup(metadata=ObjectMeta(name="train", annotations=annotations))


def facts(**annotations: str) -> OwnedObject:
    return OwnedObject(kind="ConfigMap", metadata=ObjectMeta(name="f", annotations=annotations))


def test_annotations_are_copied_one_by_one() -> None:
    reserved = group(**{RESERVED_ANNOTATION: "of the scheduler"})
    patch = mirror_saves(
        reserved, [facts(**{SAVES_ANNOTATION: "true", SAVE_ANSWER_ANNOTATION: ANSWER})]
    )
    assert patch is not None
    assert patch.operations == [
        {"op": "add", "path": SAVES_PATH, "value": "true"},
        {"op": "add", "path": ANSWER_PATH, "value": ANSWER},
    ]


def test_group_without_annotations_gets_the_field() -> None:
    patch = mirror_saves(group(), [facts(**{SAVES_ANNOTATION: "true"})])
    assert patch is not None
    assert patch.operations == [
        {"op": "add", "path": "/metadata/annotations", "value": {SAVES_ANNOTATION: "true"}}
    ]


def test_group_that_is_current_is_not_written() -> None:
    same = {SAVES_ANNOTATION: "true", SAVE_ANSWER_ANNOTATION: ANSWER}
    assert mirror_saves(group(**same), [facts(**same)]) is None
    assert mirror_saves(group(), [facts()]) is None


def test_removed_annotation_is_removed() -> None:
    patch = mirror_saves(group(**{SAVES_ANNOTATION: "true"}), [facts()])
    assert patch is not None
    assert patch.operations == [{"op": "remove", "path": SAVES_PATH}]


@pytest.mark.parametrize(
    "written",
    [
        {SAVES_ANNOTATION: "yes"},
        {SAVES_ANNOTATION: ""},
        {SAVE_ANSWER_ANNOTATION: "first"},
        {SAVE_ANSWER_ANNOTATION: f'{{"id":"{"x" * 300}"}}'},
        {SAVE_REQUEST_ANNOTATION: "{}"},
        {RESERVED_ANNOTATION: "{}"},
    ],
)
def test_other_values_and_other_annotations_are_not_copied(written: dict[str, str]) -> None:
    assert mirror_saves(group(), [facts(**written)]) is None
