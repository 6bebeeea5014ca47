"""Our certificates pass the strict verification that Python 3.13 turns on by default."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gangline.local.apiserver.auth.node_certificates import prepare_node_certificates
from gangline.local.apiserver.auth.pki import (
    CertificateAuthority,
    KeyPairFiles,
    prepare_certificates,
)
from gangline.operator.webhook.certificate import issue_certificate

HOST = "node-1"


def verify_strictly(authority: Path, server: KeyPairFiles, client: KeyPairFiles | None) -> None:
    """Shake hands in memory, both ends with ``VERIFY_X509_STRICT``.

    Raises:
        SSLCertVerificationError: a certificate is refused.
    """
    of_client = ssl.create_default_context(cafile=authority)
    of_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    of_server.load_cert_chain(server.certificate, server.key)
    if client is not None:
        of_server.verify_mode = ssl.CERT_REQUIRED
        of_client.load_cert_chain(client.certificate, client.key)
    for context in (of_client, of_server):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        of_client.wrap_bio(down, up, server_hostname=HOST),
        of_server.wrap_bio(up, down, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


@pytest.mark.parametrize("client", ["admin", "kubelet_client"])
def test_certificates_of_the_api_server_pass(tmp_path: Path, client: str) -> None:
    made = prepare_certificates(tmp_path, [HOST])
    verify_strictly(made.authority.certificate, made.server, getattr(made, client))


def test_certificates_of_nodes_pass(tmp_path: Path) -> None:
    authority = prepare_certificates(tmp_path / "pki", [HOST]).authority
    node = prepare_node_certificates(
        CertificateAuthority(authority), tmp_path / "node", HOST, ["10.0.0.1"]
    )
    verify_strictly(authority.certificate, node.server, node.client)


def test_certificate_of_the_webhook_passes(tmp_path: Path) -> None:
    made = issue_certificate([HOST], datetime.now(UTC), timedelta(days=1))
    files = {"ca": made.authority.pem, "crt": made.certificate, "key": made.key}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    verify_strictly(tmp_path / "ca", KeyPairFiles(tmp_path / "crt", tmp_path / "key"), None)
