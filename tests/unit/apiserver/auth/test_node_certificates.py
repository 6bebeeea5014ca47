"""Certificates of nodes: made once, private, and issued again when they cannot be used."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from gangline.local.apiserver.auth.node_certificates import prepare_node_certificates
from gangline.local.apiserver.auth.pki import CertificateAuthority, prepare_certificates


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(prepare_certificates(tmp_path / "pki", ["localhost"]).authority)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_node_is_a_client_by_name_and_a_server_by_name_and_address(
    authority: CertificateAuthority, tmp_path: Path
):
    made = prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    client = x509.load_pem_x509_certificate(made.client.certificate.read_bytes())
    (name,) = client.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    (group,) = client.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert (name.value, group.value) == ("system:node:n1", "system:nodes")
    server = x509.load_pem_x509_certificate(made.server.certificate.read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["n1"]
    assert (tmp_path / "n1").stat().st_mode & 0o777 == 0o700
    assert made.client.key.stat().st_mode & 0o777 == 0o600


def test_certificates_are_made_once(authority: CertificateAuthority, tmp_path: Path):
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    before = contents(tmp_path / "n1")
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    assert contents(tmp_path / "n1") == before


@pytest.mark.parametrize("name", ["client.crt", "client.key", "server.crt", "server.key"])
@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_damaged_file_is_replaced(
    authority: CertificateAuthority, tmp_path: Path, name: str, content: bytes
):
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    (tmp_path / "n1" / name).write_bytes(content)
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    assert (tmp_path / "n1" / name).read_bytes().startswith(b"-----BEGIN")


def test_a_key_of_another_certificate_is_replaced(authority: CertificateAuthority, tmp_path: Path):
    made = prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    before = made.client.certificate.read_bytes()
    made.client.key.write_bytes(made.server.key.read_bytes())
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    assert made.client.certificate.read_bytes() != before


def test_certificates_of_another_authority_and_for_other_addresses_are_replaced(
    authority: CertificateAuthority, tmp_path: Path
):
    made = prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    client, server = made.client.certificate.read_bytes(), made.server.certificate.read_bytes()
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.2"])
    assert made.client.certificate.read_bytes() == client
    assert made.server.certificate.read_bytes() != server
    other = CertificateAuthority(prepare_certificates(tmp_path / "other", ["x"]).authority)
    prepare_node_certificates(other, tmp_path / "n1", "n1", ["127.0.0.2"])
    assert made.client.certificate.read_bytes() != client
