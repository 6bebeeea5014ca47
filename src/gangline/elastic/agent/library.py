"""What workers import, kept at the master for nodes that come later.

A node that comes to a job which trains already warms its spares by this list before it joins, so
that the others train on meanwhile and nobody waits for its imports.
"""

import contextlib
import json
import zlib

from gangline.elastic.protocol.client import Client
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError
from gangline.elastic.protocol.messages import Done, KeyValueGet, KeyValueSet, Values

_KEY = "gangline/imports"
_PATIENCE_S = 10.0


class Library:
    """One job's list."""

    def __init__(self, client: Client) -> None:
        """Take the way to the master."""
        self._client = client
        self._is_told = False
        self.modules: tuple[str, ...] = ()
        """What this node has learned."""

    async def known(self) -> tuple[str, ...]:
        """Return what the master knows; nothing if no workers have run yet."""
        with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
            wanted = KeyValueGet(keys=(_KEY,))
            held = (await self._client.ask(wanted, Values, timeout_s=_PATIENCE_S)).values[0]
            return read(held) if held else ()
        return ()

    async def tell(self) -> None:
        """Tell the master, once; should it be away, the next call tries again."""
        if not self.modules or self._is_told:
            return
        with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
            told = KeyValueSet(key=_KEY, value=written(self.modules))
            await self._client.ask(told, Done, timeout_s=_PATIENCE_S)
            self._is_told = True


def written(modules: tuple[str, ...]) -> bytes:
    """Write a list of modules down; those of PyTorch are a thousand and more."""
    return zlib.compress(json.dumps(modules).encode())


def read(held: bytes) -> tuple[str, ...]:
    """Read a list; nothing if it is none, as another version may have written it."""
    try:
        found = json.loads(zlib.decompress(held))
    except (zlib.error, ValueError):
        return ()
    return tuple(filter(_is_name, found)) if isinstance(found, list) else ()


def _is_name(one: object) -> bool:
    return isinstance(one, str)
