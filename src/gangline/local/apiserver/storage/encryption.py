"""Encryption of Secrets in the state file, in the format of Kubernetes' ``aesgcm`` provider.

A stored value is ``k8s:enc:aesgcm:v1:NAME:``, a nonce of 12 random bytes, and the AES-256-GCM
ciphertext with its tag. The associated data is the object's storage key, so a value that is copied
to another object does not decrypt.

A key file has one key in each line, ``NAME:BASE64`` (32 bytes); ``#`` starts a comment. The first
key encrypts, all keys decrypt. To rotate, insert a new first line and restart: the server encrypts
every Secret again at start, and the old line can be removed.

Constraint: a random nonce may repeat after about 2^32 writes with one key; rotate before.
"""

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gangline.local.apiserver.storage.durable_files import write_durably

ENCRYPTED_TOPICS = frozenset({"secrets."})
"""Storage names of the encrypted kinds."""

PREFIX = b"k8s:enc:aesgcm:v1:"
KEY_BYTES = 32
NONCE_BYTES = 12
KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
GENERATED_FILE = "encryption.key"
"""The key of a cluster that was created without ``--encryption-key``, in its data folder."""


class EncryptionKeyError(Exception):
    """A key file cannot be used, or a value needs another key. The message has the remedy."""


class EncryptionKeys:
    """The keys of one server."""

    def __init__(self, keys: Mapping[str, bytes], origin: str) -> None:
        """``keys`` starts with the key that encrypts; ``origin`` names the files in messages."""
        self._origin = origin
        self.keys = dict(keys)
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self.primary = next(iter(keys), "")
        self._head = PREFIX + self.primary.encode() + b":"

    @classmethod
    def none(cls) -> Self:
        """Return no keys: values are stored as they are."""
        return cls({}, "")

    def __bool__(self) -> bool:
        return bool(self._ciphers)

    def encrypt(self, topic: str, key: str, body: bytes) -> bytes:
        """Return the value to store for an object; kinds that are not encrypted are unchanged."""
        if not self._ciphers or topic not in ENCRYPTED_TOPICS:
            return body
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._ciphers[self.primary].encrypt(nonce, body, _associated_data(topic, key))
        return self._head + nonce + sealed

    def decrypt(self, topic: str, key: str, stored: bytes) -> bytes:
        """Return the object of a stored value. Raises EncryptionKeyError: its key is missing or is
        another one.
        """
        if not stored.startswith(PREFIX):
            return stored
        label = self.key_name(stored)
        rest = stored[len(PREFIX) :].partition(b":")[2]
        cipher = self._ciphers.get(label)
        subject = f"{topic.removesuffix('.')} {key!r}"
        if cipher is None:
            where = f"{self._origin} has {', '.join(self.keys)}" if self else "no key file is given"
            raise EncryptionKeyError(
                f"{subject} is encrypted with key {label!r}, but {where}: start with "
                f"--encryption-key FILE, where FILE has a line '{label}:…'"
            )
        nonce, sealed = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, sealed, _associated_data(topic, key))
        except (InvalidTag, ValueError):
            raise EncryptionKeyError(
                f"{subject} does not decrypt with key {label!r} of {self._origin}: this is another "
                "key of the same name, or the stored value was changed"
            ) from None

    @staticmethod
    def key_name(stored: bytes) -> str:
        """Return the name of the key that a stored value needs; empty if it is not encrypted."""
        if not stored.startswith(PREFIX):
            return ""
        return stored[len(PREFIX) :].partition(b":")[0].decode(errors="replace")

    def is_current(self, topic: str, stored: bytes) -> bool:
        """Return True if a stored value is what ``encrypt`` would store: with the first key."""
        if not self._ciphers or topic not in ENCRYPTED_TOPICS:
            return True
        return stored.startswith(self._head)


def _associated_data(topic: str, key: str) -> bytes:
    return f"/registry/{topic}/{key}".encode()


def load_keys(folder: Path, key_file: Path | None, *, new_cluster: bool) -> EncryptionKeys:
    """Return the keys of the cluster in ``folder``.

    ``key_file`` comes first; the generated key of the folder then only decrypts. A new cluster
    without ``key_file`` gets a generated key.

    Raises:
        EncryptionKeyError: a file cannot be used.
        OSError: the generated key cannot be written.
    """
    generated = folder / GENERATED_FILE
    if key_file is None and new_cluster and not generated.exists():
        write_durably(generated, generate_key_line())
    keys: dict[str, bytes] = {}
    used: list[Path] = []
    for path in (key_file, generated):
        if path is None or (path is generated and not path.exists()):
            continue
        for name, key in read_key_file(path).items():
            if keys.setdefault(name, key) != key:
                raise EncryptionKeyError(
                    f"{path} and {used[0]} have different keys named {name!r}: rename the new one"
                )
        used.append(path)
    return EncryptionKeys(keys, " and ".join(map(str, used)))


def generate_key_line() -> bytes:
    """Return the content of a key file with one new key."""
    name, key = f"key-{secrets.token_hex(4)}", secrets.token_bytes(KEY_BYTES)
    return f"{name}:{base64.b64encode(key).decode()}\n".encode()


def read_key_file(path: Path) -> dict[str, bytes]:
    """Return the keys of a file by name, in its order. Raises EncryptionKeyError: it is missing,
    readable by others, or malformed.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise EncryptionKeyError(f"cannot read the encryption keys in {path}: {reason}") from error
    if mode & 0o077:
        raise EncryptionKeyError(
            f"{path} holds encryption keys, but other users can access it: run 'chmod 600 {path}'"
        )
    return parse_keys(text, str(path))


def parse_keys(text: str, origin: str) -> dict[str, bytes]:
    """Read lines ``NAME:BASE64``; messages name ``origin``. Raises EncryptionKeyError: a line is
    malformed, or there is no key.
    """
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        name, _, encoded = entry.partition(":")
        try:
            key = base64.b64decode(encoded.strip(), validate=True)
        except binascii.Error:
            key = b""
        if not KEY_NAME.fullmatch(name) or len(key) != KEY_BYTES:
            raise EncryptionKeyError(
                f"{origin}, line {number}: not a key; write 'NAME:' and {KEY_BYTES} random bytes "
                'in base64, as printed by: echo "key1:$(head -c 32 /dev/urandom | base64)"'
            )
        if name in keys:
            raise EncryptionKeyError(f"{origin}, line {number}: key {name!r} exists twice")
        keys[name] = key
    if not keys:
        raise EncryptionKeyError(f"{origin} holds no key; a key is a line 'NAME:BASE64'")
    return keys
