"""A secure channel over the streams of asyncio: one frame at a time, in each direction."""

import asyncio
import contextlib

from gangline.elastic.protocol.channel.job_secret import JobSecret
from gangline.elastic.protocol.channel.secure_channel import SecureChannel, SecureChannelError

_READ_BYTES = 1 << 16


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
        """Send a frame.

        Raises:
            OSError: the connection broke.
        """
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
        piece = await self._reader.read(_READ_BYTES)
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
