"""Keyed digests: what must match within one cluster and must not be readable outside of it."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gangline.kube.errors import ConfigError

KEY_BYTES = 32


def keyed_digest(key: bytes, parts: Iterable[Any]) -> str:
    """Return a digest of JSON values in 32 hexadecimal digits; the order of keys has no effect."""
    encoded = msgspec.json.encode(list(parts), order="deterministic")
    return hmac.new(key, encoded, hashlib.sha256).hexdigest()[:32]


def read_or_create_key(path: Path) -> bytes:
    """Read the key of this cluster's digests; create it, readable by its owner only.

    Raises:
        ConfigError: the file cannot be read or created, or is not a key.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            # O_EXCL: of two Brains that start together, both use the key of the first.
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            key = path.read_bytes()
        else:
            key = secrets.token_bytes(KEY_BYTES)
            with os.fdopen(handle, "wb") as file:
                file.write(key)
    except OSError as error:
        raise ConfigError(f"the key of digests, {path}: {error.strerror}") from error
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"the key of digests, {path}, has {len(key)} bytes instead of {KEY_BYTES}"
        )
    return key
