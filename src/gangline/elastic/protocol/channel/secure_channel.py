"""Connections between the processes of a job: TLS 1.3 that both ends authenticate, without I/O.

Before TLS each end sends a preamble, the magic bytes and the version of this scheme:

    client: preamble, ClientHello          server: preamble, ServerHello ...

So the server recognises other programs and other versions before it computes anything, and both
ends report both versions. In the TLS stream each message is a frame: four bytes of length, then the
content. The stream ends with the connection; frames make a truncated one visible.
"""

import ssl
import struct
from collections.abc import Iterator

from gangline.elastic.protocol.channel.certificates import tls_end
from gangline.elastic.protocol.channel.job_secret import JobSecret

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

    Raises:
        SecureChannelError: it is another program, or uses another version.
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
        """The longest accepted frame."""
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

        Raises:
            SecureChannelError: the other end is not authentic or sent a frame that is too long.
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
