"""Request bodies in Kubernetes' protobuf form, as kubectl 1.32 and newer send them.

Answers are never in this form: clients that send it take JSON as well.
"""

from gangline.local.apiserver.errors import bad_request, unsupported_media
from gangline.local.apiserver.machinery.protobuf_bodies import (
    MEDIA,
    ProtobufError,
    UnknownKind,
    decode_body,
)
from gangline.local.apiserver.registry import Json

__all__ = ["MEDIA", "read_protobuf"]


def read_protobuf(body: bytes, accepted: tuple[str, ...]) -> Json:
    """Decode a body.

    Raises:
        StatusError: 415 for kinds that are not known here, 400 for bytes that are no message.
    """
    try:
        return decode_body(body)
    except UnknownKind:
        raise unsupported_media(MEDIA, accepted) from None
    except ProtobufError as error:
        raise bad_request(f"the body of the request is not valid protobuf: {error}") from None
