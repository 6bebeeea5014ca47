"""Specifications as text: JSON, compressed by zlib, in base64. The status of a job records one."""

import base64
import binascii
import zlib


def pack_spec(spec: bytes | memoryview) -> str:
    return base64.b64encode(zlib.compress(spec)).decode()


def unpack_spec(text: str) -> bytes | None:
    """Return the JSON; None if there is no text, or it is none that ``pack_spec`` made."""
    try:
        return zlib.decompress(base64.b64decode(text, validate=True)) if text else None
    except (binascii.Error, zlib.error):
        return None
