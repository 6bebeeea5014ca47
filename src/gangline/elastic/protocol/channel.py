"""Connections between the processes of a job: TLS 1.3 that both ends authenticate.

Before TLS each end sends a preamble, the magic bytes and the version of this scheme:

    client: preamble, ClientHello          server: preamble, ServerHello ...

So the server recognises other programs and other versions before it computes anything, and both
ends report both versions. In the TLS stream each message is a frame: four bytes of length, then the
content. The stream ends with the connection; frames make a truncated one visible.

Each role, client and server, has a key and a certificate that follow from the job's secret
(``certificate``), and each accepts only the certificate of the other role: without the secret
nothing can connect or listen. Python's ``ssl`` has no pre-shared keys for TLS 1.3 before 3.13. TLS
1.3 has forward secrecy: a secret that becomes known does not decrypt recorded connections.

``SecureChannel`` does no I/O; ``SecureStream`` adds asyncio's streams, and ``connect_securely`` and
``accept_securely`` a blocking socket for transfers of many bytes in one direction.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gangline.elastic.protocol.certificate import RoleIdentity, derive_identity
from gangline.elastic.variables import SECRET_VARIABLE

_SHORTEST_SECRET = 16
MAGIC = b"GNGL"
CHANNEL_VERSION = 2
"""1 was a record protocol of its own, before TLS."""
PREAMBLE = MAGIC + bytes([CHANNEL_VERSION])
_PREAMBLE_1_BYTES = 37
"""Version 1 reads this many bytes before it reports the version."""
MAX_FRAME_BYTES = 64 * 2**20
"""A longer frame is refused before it is read."""
MAX_FIRST_FRAME_BYTES = 64 * 2**10
"""The limit before the other end is known to be a legitimate one."""
_LENGTH = struct.Struct(">I")
_READ_BYTES = 256 * 1024
_SECURE_STREAM_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class JobSecret:
    """The secret of one job."""

    key: bytes
    is_private: bool = True
    """False if it was derived from a name that others may guess."""


def read_job_secret(environment: Mapping[str, str], job: str) -> JobSecret:
    """Read the job's secret from the environment, or derive one from the job's name.

    Raises ValueError: the variable does not hold at least 16 bytes in hexadecimal digits.
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


@dataclass(frozen=True, slots=True)
class TlsEnd:
    """What one end of a connection needs."""

    context: ssl.SSLContext
    other_certificate: bytes
    """The only certificate that the other end may show, in DER."""


@lru_cache(maxsize=16)  # a context takes milliseconds to make
def tls_end(secret: JobSecret, *, client: bool) -> TlsEnd:
    roles = ("client", "server") if client else ("server", "client")
    own, other = (derive_identity(secret.key, role) for role in roles)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if client else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is pinned
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=other.certificate)
    if not client:
        context.num_tickets = 0  # connections are never resumed
    _load_own(context, own)
    return TlsEnd(context, other.certificate)


def _load_own(context: ssl.SSLContext, own: RoleIdentity) -> None:
    """Load a key that must not be written to a disk; ``ssl`` reads keys from files only."""
    descriptor = os.memfd_create("gangline-job-key", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:
        file.write(own.to_pem())
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


class SecureChannelError(Exception):
    """The other end does not know the secret, or does not use this protocol."""


class SecretsDifferError(SecureChannelError):
    """The other end has the key of another secret."""


class OtherVersionError(SecureChannelError):
    """The other end uses another version of the channel; ``reply`` lets it report this one's."""

    def __init__(self, theirs: int) -> None:
        super().__init__(
            f"the other end uses version {theirs} of the secure channel, this one uses "
            f"{CHANNEL_VERSION}; all processes of a job need the same release of gangline"
        )
        self.reply = PREAMBLE.ljust(_PREAMBLE_1_BYTES, b"\0") if theirs == 1 else PREAMBLE


def check_preamble(received: bytes) -> None:
    """Check the first five bytes of the other end.

    Raises SecureChannelError: it is another program, or uses another version.
    """
    if received[: len(MAGIC)] != MAGIC:
        raise SecureChannelError("the other end does not belong to a gangline job")
    if received[len(MAGIC)] != CHANNEL_VERSION:
        raise OtherVersionError(received[len(MAGIC)])


def explain_tls_error(error: ssl.SSLError) -> SecureChannelError:
    """Say what a failure of TLS means: both ends accept only keys of the same secret."""
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if isinstance(error, ssl.SSLCertVerificationError) or "alert" in reason:
        return SecretsDifferError(f"the secrets differ ({reason})")
    return SecureChannelError(f"the connection is not a valid TLS 1.3 connection ({reason})")


class SecureChannel:
    """One end of a connection, as a state machine over bytes.

    Send ``output()`` after construction and after each ``feed``. Frames can be sent once
    ``is_established``.
    """

    def __init__(
        self, secret: JobSecret, *, client: bool, limit: int = MAX_FIRST_FRAME_BYTES
    ) -> None:
        self.limit = limit
        self.is_established = False
        """True once the other end has proved that it knows the secret, as far as this end can
        see: a server still checks the client when the client's end is established already.
        """
        end = tls_end(secret, client=client)
        self._pinned = end.other_certificate
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = end.context.wrap_bio(self._incoming, self._outgoing, server_side=not client)
        self._plain = bytearray(PREAMBLE if client else b"")
        """Bytes to send before those of TLS."""
        self._head: bytearray | None = bytearray()
        """The other end's preamble while it is incomplete."""
        self._content = bytearray()
        if client:
            self._shake_hands()

    def output(self) -> bytes:
        """Take the bytes that are to be sent now."""
        plain = bytes(self._plain)
        self._plain.clear()
        return plain + self._outgoing.read()

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Add received bytes; yield the contents of complete frames, in order.

        Raises SecureChannelError: the other end is not authentic or sent a frame that is too long.
        The connection must end, after ``output()`` has been sent.
        """
        if self._head is not None:
            received = self._read_preamble(received)
            if self._head is not None:
                return
        self._incoming.write(received)
        if not self.is_established:
            self._shake_hands()
        if self.is_established:
            self._decrypt()
            yield from self._frames()

    def encrypt_frame(self, content: bytes) -> bytes:
        """Encrypt a frame; return it after everything else that is to be sent."""
        self._tls.write(_LENGTH.pack(len(content)) + content)
        return self.output()

    def _read_preamble(self, received: bytes) -> bytes:
        assert self._head is not None
        self._head += received
        if not MAGIC.startswith(self._head[: len(MAGIC)]):
            check_preamble(bytes(self._head))
        if len(self._head) < len(PREAMBLE):
            return b""
        head, self._head = bytes(self._head), None
        try:
            check_preamble(head)
        except OtherVersionError as error:
            self._plain += error.reply if self._tls.server_side else b""
            raise
        self._plain += PREAMBLE if self._tls.server_side else b""
        return head[len(PREAMBLE) :]

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise explain_tls_error(error) from error
        if self._tls.getpeercert(binary_form=True) != self._pinned:
            raise SecureChannelError("the other end shows another certificate than the job's")
        self.is_established = True

    def _decrypt(self) -> None:
        try:
            while piece := self._tls.read(_READ_BYTES):
                self._content += piece
        except ssl.SSLWantReadError:
            return
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return  # the connection ends; the transport reports it
        except ssl.SSLError as error:
            raise explain_tls_error(error) from error

    def _frames(self) -> Iterator[bytes]:
        start = 0
        try:
            while len(self._content) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._content, start)
                if length > self.limit:
                    raise SecureChannelError(
                        f"a frame has {length} bytes; the limit is {self.limit}"
                    )
                end = start + _LENGTH.size + length
                if len(self._content) < end:
                    break
                content = bytes(self._content[start + _LENGTH.size : end])
                start = end
                yield content
        finally:
            del self._content[:start]


def connect_securely(connection: socket.socket, secret: JobSecret) -> ssl.SSLSocket:
    """Authenticate both ends of a new connection, as its client; take the connection over.

    Raises:
        SecureChannelError: the other end does not know the secret, or uses another version.
        OSError: the connection broke.
    """
    connection.sendall(PREAMBLE)
    check_preamble(_read_preamble(connection))
    return _wrap(connection, secret, client=True)


def accept_securely(connection: socket.socket, secret: JobSecret) -> ssl.SSLSocket:
    """Authenticate both ends of a new connection, as its server; errors as for the client."""
    try:
        check_preamble(_read_preamble(connection))
    except OtherVersionError as error:
        connection.sendall(error.reply)
        raise
    connection.sendall(PREAMBLE)
    return _wrap(connection, secret, client=False)


def _read_preamble(connection: socket.socket) -> bytes:
    received = b""
    while len(received) < len(PREAMBLE):
        piece = connection.recv(len(PREAMBLE) - len(received))
        if not piece:
            raise ConnectionResetError("the other end closed the connection before the handshake")
        received += piece
    return received


def _wrap(connection: socket.socket, secret: JobSecret, *, client: bool) -> ssl.SSLSocket:
    end = tls_end(secret, client=client)
    try:
        secured = end.context.wrap_socket(connection, server_side=not client)
    except ssl.SSLError as error:
        raise explain_tls_error(error) from error
    if secured.getpeercert(binary_form=True) != end.other_certificate:
        with contextlib.closing(secured):
            raise SecureChannelError("the other end shows another certificate than the job's")
    return secured


class SecureStream:
    """Sends and receives frames; ``connect`` must succeed first."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, channel: SecureChannel
    ) -> None:
        self._reader, self._writer, self.channel = reader, writer, channel
        self._received: list[bytes] = []

    @classmethod
    async def connect(
        cls,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        secret: JobSecret,
        *,
        client: bool,
    ) -> "SecureStream":
        """Authenticate both ends.

        Raises:
            SecureChannelError: the other end does not know the secret.
            OSError, EOFError: the connection broke.
        """
        stream = cls(reader, writer, SecureChannel(secret, client=client))
        writer.write(stream.channel.output())
        while not stream.channel.is_established:
            await stream._feed()
        return stream

    async def send(self, content: bytes) -> None:
        """Send a frame."""
        self._writer.write(self.channel.encrypt_frame(content))
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Wait for a frame; return its content.

        Raises:
            SecureChannelError: it is too long, or the other end is not authentic.
            OSError, EOFError: the connection broke.
        """
        while not self._received:
            await self._feed()
        return self._received.pop(0)

    async def _feed(self) -> None:
        piece = await self._reader.read(_SECURE_STREAM_READ_BYTES)
        if not piece:
            raise EOFError("the other end closed the connection")
        try:
            self._received.extend(self.channel.feed(piece))
        except SecureChannelError:
            self._writer.write(self.channel.output())
            with contextlib.suppress(OSError):
                await self._writer.drain()
            raise
        self._writer.write(self.channel.output())
