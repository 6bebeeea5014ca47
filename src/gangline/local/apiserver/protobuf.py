"""Request bodies in the protobuf encoding of Kubernetes, which kubectl 1.32 and newer send.

Responses never use it: all clients that send protobuf also accept JSON.
"""

from gangline.local.apiserver.errors import bad_request, unsupported_media
from gangline.local.apiserver.machinery.protobuf_bodies import (
    MEDIA,
    ProtobufError,
    UnknownProtobufKind,
    decode_protobuf,
)
from gangline.local.apiserver.registry import Json

__all__ = ["MEDIA", "read_protobuf"]


def read_protobuf(body: bytes, accepted: tuple[str, ...]) -> Json:
    """Decode a protobuf body.

    Raises:
        StatusError: 415 for unknown kinds, 400 for bytes that are not a message.
    """
    try:
        return decode_protobuf(body)
    except UnknownProtobufKind:
        raise unsupported_media(MEDIA, accepted) from None
    except ProtobufError as error:
        raise bad_request(f"the body of the request is not valid protobuf: {error}") from None
