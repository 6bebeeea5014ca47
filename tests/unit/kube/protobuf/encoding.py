"""What an API server writes around objects in protobuf."""

from collections.abc import Iterable

from kubernetes_proto import piece, varint

MEDIA = "application/vnd.kubernetes.protobuf"


def number(field: int, value: int) -> bytes:
    """Return a field whose value is a number."""
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    """Return the bytes of an object in its envelope."""
    type_ = piece(1, api_version.encode()) + piece(2, kind.encode())
    return b"k8s\x00" + piece(1, type_) + piece(2, raw) + piece(3, b"") + piece(4, b"")


def list_body(
    api_version: str, kind: str, objects: Iterable[bytes], revision: str = "1", more: str = ""
) -> bytes:
    """Return the body of a list."""
    meta = piece(1, b"") + piece(2, revision.encode()) + piece(3, more.encode())
    items = b"".join(piece(2, each) for each in objects)
    return envelope(api_version, kind, piece(1, meta) + items)


def frame(type_: str, enveloped: bytes) -> bytes:
    """Return one event of a watch."""
    event = piece(1, type_.encode()) + piece(2, piece(1, enveloped))
    return len(event).to_bytes(4, "big") + event


def status(code: int, reason: str, message: str = "", retry: int = 0) -> bytes:
    """Return a Status in its envelope."""
    fields = (
        piece(1, b""),
        piece(2, b"Failure"),
        piece(3, message.encode()),
        piece(4, reason.encode()),
        piece(5, number(5, retry)),
        number(6, code),
    )
    return envelope("v1", "Status", b"".join(fields))


def pod(name: str, node: str = "", revision: str = "1") -> bytes:
    """Return the bytes of a pod."""
    metadata = {1: name, 3: "default", 5: f"uid-{name}", 6: revision}
    meta = b"".join(piece(field, value.encode()) for field, value in metadata.items())
    spec = piece(10, node.encode()) + piece(19, b"gangline")
    return piece(1, meta) + piece(2, spec) + piece(3, piece(1, b"Running"))
