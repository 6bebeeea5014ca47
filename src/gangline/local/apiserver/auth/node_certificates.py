"""The certificates of nodes: each node has one as a client and one as a server.

As a client it is ``system:node:NAME`` in the group ``system:nodes``. As a server it has its name
and addresses. A certificate that is missing, damaged, outdated or of another authority is issued
again, so that its files need not survive a power failure.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from gangline.local.apiserver.auth.pki import (
    CLIENT_USAGE,
    RENEW_BEFORE_EXPIRY,
    CertificateAuthority,
    KeyPairFiles,
    encode_key,
    make_name,
    server_options,
)

NODE_PREFIX, NODE_GROUP = "system:node:", "system:nodes"
"""User name (with the node's name) and group of a kubelet."""


@dataclass(frozen=True, slots=True)
class NodeCertificates:
    """The certificates of one node."""

    client: KeyPairFiles
    """For requests to the API server."""
    server: KeyPairFiles
    """For the kubelet's own server."""


def prepare_node_certificates(
    authority: CertificateAuthority, folder: Path, node: str, addresses: Sequence[str]
) -> NodeCertificates:
    """Create missing or outdated certificates of a node in ``folder`` and return all paths.

    Raises:
        ValueError: a file of the authority is damaged.
        OSError: the folder cannot be read or written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    server = server_options([node, *addresses])
    for name, options in (("client", [CLIENT_USAGE]), ("server", server)):
        pair = _pair(folder, name)
        if not _is_usable(pair, authority, options):
            certificate, key = authority.sign(
                make_name(f"{NODE_PREFIX}{node}", NODE_GROUP), options
            )
            _write(pair.key, encode_key(key))
            _write(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return NodeCertificates(_pair(folder, "client"), _pair(folder, "server"))


def _pair(folder: Path, name: str) -> KeyPairFiles:
    return KeyPairFiles(folder / f"{name}.crt", folder / f"{name}.key")


def _is_usable(
    pair: KeyPairFiles, authority: CertificateAuthority, options: Sequence[x509.ExtensionType]
) -> bool:
    if not pair.exists:
        return False
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
        present = [certificate.extensions.get_extension_for_class(type(e)).value for e in options]
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return (
        certificate.public_key() == key.public_key()
        and certificate.not_valid_after_utc > datetime.now(UTC) + RENEW_BEFORE_EXPIRY
        and present == list(options)
        and authority.has_issued(certificate)
    )


def _write(path: Path, content: bytes) -> None:
    """Replace a file that only its owner reads."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
        file.write(content)
    temporary.replace(path)
