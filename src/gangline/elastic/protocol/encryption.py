"""Authenticated encryption of the connections between agents and master, with the job's secret.

Each connection has its own keys, one for each direction, derived from the secret and the random
bytes of both ends (HKDF). Frames are encrypted with ChaCha20-Poly1305; the nonce is the number of
the frame. So a frame that is repeated, omitted, reordered or taken from another connection fails to
decrypt. A frame is four bytes of length, then the encrypted content; the length is authenticated.

    client: MAGIC version random          server: MAGIC version random          then frames
"""

import hashlib
import os
import secrets
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gangline.elastic.variables import SECRET_VARIABLE

MAGIC = b"GNGL"
HANDSHAKE_VERSION = 1
RANDOM_BYTES = 32
HANDSHAKE_BYTES = len(MAGIC) + 1 + RANDOM_BYTES

MAX_FRAME_BYTES = 64 * 2**20
"""A longer frame is refused before it is read."""
MAX_FIRST_FRAME_BYTES = 64 * 2**10
"""The limit before the other end has proved that it knows the secret."""

_SHORTEST_SECRET = 16
_LENGTH = struct.Struct(">I")
_TAG_BYTES = 16


class SecureChannelError(Exception):
    """The other end does not know the secret, or the stream was tampered with."""


@dataclass(frozen=True, slots=True)
class JobSecret:
    """The secret that all processes of a job share."""

    key: bytes
    is_private: bool = True
    """False if it was derived from a name that others may guess."""


def read_job_secret(environment: Mapping[str, str], job: str) -> JobSecret:
    """Read the job's secret from the environment, or derive one from the job's name.

    Raises:
        ValueError: the variable does not hold at least 16 bytes in hexadecimal digits.
    """
    text = environment.get(SECRET_VARIABLE, "")
    if not text:
        return JobSecret(hashlib.sha256(b"gangline job " + job.encode()).digest(), is_private=False)
    try:
        key = bytes.fromhex(text)
    except ValueError as error:
        raise ValueError(f"{SECRET_VARIABLE} must be hexadecimal digits") from error
    if len(key) < _SHORTEST_SECRET:
        raise ValueError(f"{SECRET_VARIABLE} must hold at least {_SHORTEST_SECRET} bytes")
    return JobSecret(key)


def generate_secret() -> str:
    """Create a secret in the format of the environment variable."""
    return secrets.token_hex(32)


def new_handshake() -> bytes:
    """Create the first bytes of one end."""
    return MAGIC + bytes([HANDSHAKE_VERSION]) + os.urandom(RANDOM_BYTES)


def check_handshake(received: bytes) -> None:
    """Check the first bytes of the other end.

    Raises:
        SecureChannelError: it does not use this protocol.
    """
    if received[: len(MAGIC)] != MAGIC:
        raise SecureChannelError("the other end does not belong to a gangline job")
    if received[len(MAGIC)] != HANDSHAKE_VERSION:
        raise SecureChannelError(f"the other end uses handshake version {received[len(MAGIC)]}")


@dataclass(frozen=True, slots=True)
class SecureChannel:
    """The two directions of a connection, as one end sees them."""

    encryptor: "FrameEncryptor"
    decryptor: "FrameDecryptor"


def derive_channel(
    secret: JobSecret, client_greeting: bytes, server_greeting: bytes, *, client: bool
) -> SecureChannel:
    """Derive the keys of a connection from the random bytes of both ends."""
    up, down = (
        _derive(secret, client_greeting + server_greeting, direction)
        for direction in (b"to master", b"from master")
    )
    own, other = (up, down) if client else (down, up)
    return SecureChannel(FrameEncryptor(own), FrameDecryptor(other))


def _derive(secret: JobSecret, salt: bytes, direction: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt, b"gangline elastic 1 " + direction).derive(secret.key)


class FrameEncryptor:
    """Encrypts frames."""

    def __init__(self, key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(key)
        self._count = 0

    def encrypt_frame(self, content: bytes) -> bytes:
        """Encrypt one frame; frames must be sent in the order of calls."""
        length = _LENGTH.pack(len(content) + _TAG_BYTES)
        nonce = self._count.to_bytes(12, "big")
        self._count += 1
        return length + self._cipher.encrypt(nonce, content, length)


class FrameDecryptor:
    """Finds frames in a stream of bytes and decrypts them."""

    def __init__(self, key: bytes, limit: int = MAX_FIRST_FRAME_BYTES) -> None:
        self.limit = limit
        """The longest accepted frame; it is raised once the other end is authenticated."""
        self._cipher = ChaCha20Poly1305(key)
        self._count = 0
        self._pending = bytearray()

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Add received bytes; yield the contents that are complete, in order.

        Raises:
            SecureChannelError: a frame is too long or fails to decrypt. The connection must end.
        """
        self._pending += received
        start = 0
        try:
            while len(self._pending) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._pending, start)
                if not _TAG_BYTES <= length <= self.limit + _TAG_BYTES:
                    raise SecureChannelError(
                        f"a frame has {length} bytes; the limit is {self.limit}"
                    )
                end = start + _LENGTH.size + length
                if len(self._pending) < end:
                    break
                sealed = bytes(self._pending[start + _LENGTH.size : end])
                start = end
                yield self._open(sealed, _LENGTH.pack(length))
        finally:
            del self._pending[:start]

    def _open(self, sealed: bytes, length: bytes) -> bytes:
        nonce = self._count.to_bytes(12, "big")
        self._count += 1
        try:
            return self._cipher.decrypt(nonce, sealed, length)
        except InvalidTag as error:
            raise SecureChannelError(
                "a frame fails to decrypt: the secrets differ, or it is forged"
            ) from error
