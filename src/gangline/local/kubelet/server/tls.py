"""TLS of a kubelet server: a certificate for each node, and clients with a certificate only.

Virtual nodes share one server. The name that a client expects (SNI) selects the node, so that a
connection reaches exactly the node that the client has verified.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ServingFiles:
    """Paths of a node's serving certificate and key."""

    certificate: Path
    key: Path


class NodeTls:
    """The TLS contexts of all nodes of a server; that of a node is made at its first connection."""

    def __init__(self, authority: Path, files_of: Callable[[str], ServingFiles | None]) -> None:
        """``authority`` is the CA of clients; ``files_of`` returns None for an unknown node."""
        self._authority = authority
        self._files_of = files_of
        self._by_node: dict[str, ssl.SSLContext] = {}
        self._nodes: dict[ssl.SSLContext, str] = {}
        self.context = self._make_context()
        """The context to listen with."""
        self.context.sni_callback = self._select

    def node_of(self, connection: ssl.SSLObject) -> str:
        """Return the node that a connection was made to; empty if it named none."""
        return self._nodes.get(connection.context, "")

    def _select(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: Any
    ) -> int | None:
        context = self._by_node.get(name or "")
        if context is None:
            files = self._files_of(name) if name else None
            if name is None or files is None:
                return int(ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
            context = self._make_context()
            try:
                context.load_cert_chain(files.certificate, files.key)
            except OSError:
                return int(ssl.AlertDescription.ALERT_DESCRIPTION_INTERNAL_ERROR)
            self._by_node[name] = context
            self._nodes[context] = name
        connection.context = context
        return None

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self._authority)
        context.verify_mode = ssl.CERT_REQUIRED
        return context
