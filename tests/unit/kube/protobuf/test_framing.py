"""Lists and watches in protobuf arrive in parts of any size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.meta.objects import ListMeta
from gangline.kube.protobuf.framing import FrameSplitter, ListSplitter, open_envelope, read_status
from gangline.kube.protobuf.reader import MalformedMessage
from unit.kube.protobuf.encoding import envelope, frame, list_body, piece, status

OBJECTS = st.lists(st.binary(max_size=300), max_size=6)


def parts(raw: bytes, sizes: list[int]) -> list[bytes]:
    """Cut bytes into parts of these sizes, and the rest."""
    found = []
    for size in sizes:
        found.append(raw[:size])
        raw = raw[size:]
    return [*found, raw]


@given(objects=OBJECTS, sizes=st.lists(st.integers(1, 200), max_size=8))
def test_list_has_the_same_objects_however_it_arrives(
    objects: list[bytes], sizes: list[int]
) -> None:
    splitter = ListSplitter()
    found = []
    for part in parts(list_body("v1", "PodList", objects, "17", "next"), sizes):
        found += splitter.feed(part)
    assert found == objects
    assert splitter.finish() == ListMeta(resource_version="17", continue_="next")


def test_list_that_ends_early_is_refused() -> None:
    splitter = ListSplitter()
    assert splitter.feed(list_body("v1", "PodList", [b"one", b"two"])[:-8]) == [b"one"]
    with pytest.raises(MalformedMessage, match="ended early"):
        splitter.finish()


def test_object_that_is_longer_than_its_list_is_refused() -> None:
    body = b"k8s\x00" + b"\x12\x05" + piece(2, b"longer than five bytes")
    with pytest.raises(MalformedMessage, match="longer than its list"):
        ListSplitter().feed(body)


def test_another_format_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="magic"):
        ListSplitter().feed(b'{"kind": "PodList"}')
    with pytest.raises(MalformedMessage, match="magic"):
        open_envelope(b"{}")


@given(objects=OBJECTS, sizes=st.lists(st.integers(1, 200), max_size=8))
def test_watch_has_the_same_events_however_it_arrives(
    objects: list[bytes], sizes: list[int]
) -> None:
    raw = b"".join(frame("ADDED", envelope("v1", "Pod", each)) for each in objects)
    splitter = FrameSplitter()
    found = [event for part in parts(raw, sizes) for event in splitter.feed(part)]
    assert found == [("ADDED", each) for each in objects]


def test_frame_that_is_no_event_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        list(FrameSplitter().feed(b"\x00\x00\x00\x02\x0a\xff"))


def test_status_is_read() -> None:
    found = read_status(open_envelope(status(429, "TooManyRequests", "busy", retry=7)))
    assert (found.code, found.reason, found.message) == (429, "TooManyRequests", "busy")
    assert found.details is not None
    assert found.details.retry_after_seconds == 7
