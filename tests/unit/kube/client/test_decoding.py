"""Objects as a Go server encodes them: an empty list is null."""

import json
from collections.abc import Iterator

import msgspec
import pytest

from gangline.api.resources import (
    HYPERNODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    STORAGE_CLASSES,
)
from gangline.kube.client.decoding import decode_event, decode_object, decode_page
from unit.kube.fake_server import Thing, ThingSpec

KINDS = [
    HYPERNODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    STORAGE_CLASSES,
]


def structs_within(kind: type) -> Iterator[type[msgspec.Struct]]:
    seen: set[object] = set()
    left: list[object] = [msgspec.inspect.type_info(kind)]
    while left:
        found = left.pop()
        if isinstance(found, msgspec.inspect.StructType):
            if found.cls in seen:
                continue
            seen.add(found.cls)
            yield found.cls
        if isinstance(found, msgspec.inspect.Field | msgspec.inspect.Type):
            left += [getattr(found, name) for name in found.__struct_fields__]
        elif isinstance(found, tuple):
            left += found


@pytest.mark.parametrize("kind", [each.type for each in KINDS], ids=lambda kind: kind.__name__)
def test_a_field_that_is_null_was_not_given(kind: type) -> None:
    structs = list(structs_within(kind))
    assert len(structs) > 2
    for struct in structs:
        names = [field.encode_name for field in msgspec.structs.fields(struct)]
        assert decode_object(struct, json.dumps(dict.fromkeys(names)).encode()) == struct()


def test_nulls_are_ignored_in_lists_and_watches() -> None:
    thing = '{"metadata": {"name": "a", "labels": null}, "spec": null}'
    expected = Thing(metadata=msgspec.convert({"name": "a"}, type(Thing().metadata)))
    _, items, malformed = decode_page(Thing, f'{{"items": [{thing}]}}'.encode())
    assert (items, malformed) == ([expected], [])
    event = decode_event(Thing, f'{{"type": "ADDED", "object": {thing}}}'.encode())
    assert not isinstance(event, bytes)
    assert (event.type, event.object) == ("ADDED", expected)


def test_what_does_not_fit_is_refused_also_beside_a_null() -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        decode_object(ThingSpec, b'{"size": "x", "other": null}')
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        decode_object(ThingSpec, b'{"size": "x"}')
