"""The preload list: modules that workers import, stored at the master for nodes that join later.

A node that joins a running job warms its spares with this list first. The other nodes
continue training meanwhile instead of waiting for its imports.
"""

import contextlib
import json
import zlib

from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError
from gangline.elastic.protocol.messages import Acknowledged, KeyValueGet, KeyValueReply, KeyValueSet

_KEY = "gangline/imports"
_PATIENCE_S = 10.0


class PreloadList:
    """One job's preload list."""

    def __init__(self, client: MasterClient) -> None:
        self._client = client
        self._is_published = False
        self.modules: tuple[str, ...] = ()
        """Modules that this node has learned."""

    async def fetch(self) -> tuple[str, ...]:
        """Return the list stored at the master; empty if no workers have run yet."""
        with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
            request = KeyValueGet(keys=(_KEY,))
            value = (await self._client.ask(request, KeyValueReply, timeout_s=_PATIENCE_S)).values[
                0
            ]
            return decode_modules(value) if value else ()
        return ()

    async def publish(self) -> None:
        """Store the list at the master, once. If the master is away, the next call tries again."""
        if not self.modules or self._is_published:
            return
        with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
            update = KeyValueSet(key=_KEY, value=encode_modules(self.modules))
            await self._client.ask(update, Acknowledged, timeout_s=_PATIENCE_S)
            self._is_published = True


def encode_modules(modules: tuple[str, ...]) -> bytes:
    """Compress a list of modules. PyTorch alone has more than a thousand."""
    return zlib.compress(json.dumps(modules).encode())


def decode_modules(data: bytes) -> tuple[str, ...]:
    """Decompress a list; empty if it is invalid, as another version may have written it."""
    try:
        found = json.loads(zlib.decompress(data))
    except (zlib.error, ValueError):
        return ()
    return tuple(filter(_is_name, found)) if isinstance(found, list) else ()


def _is_name(one: object) -> bool:
    return isinstance(one, str)
