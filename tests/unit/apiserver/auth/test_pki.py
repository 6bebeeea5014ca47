"""Certificates: created once, reused, renewed when outdated, refused when damaged."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509

from gangline.local.apiserver.auth.pki import CertificateError, prepare_certificates


def test_certificates_are_made_once_and_keys_are_private(tmp_path: Path):
    first = prepare_certificates(tmp_path / "pki", ["localhost"])
    before = {p.name: p.read_bytes() for p in (tmp_path / "pki").iterdir()}
    assert prepare_certificates(tmp_path / "pki", ["localhost"]) == first
    assert {p.name: p.read_bytes() for p in (tmp_path / "pki").iterdir()} == before
    assert first.authority.key.stat().st_mode & 0o077 == 0
    ssl.create_default_context(cafile=str(first.authority.certificate)).load_cert_chain(
        first.server.certificate, first.server.key
    )


def test_a_new_name_renews_the_servers_certificate_and_nothing_else(tmp_path: Path):
    first = prepare_certificates(tmp_path, ["localhost"])
    authority, server = (
        first.authority.certificate.read_bytes(), first.server.certificate.read_bytes()
    )  # fmt: skip
    second = prepare_certificates(tmp_path, ["localhost", "10.1.2.3"])
    assert second.authority.certificate.read_bytes() == authority
    assert second.server.certificate.read_bytes() != server
    made = x509.load_pem_x509_certificate(second.server.certificate.read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3"]


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "server.crt", "admin.crt"])
def test_a_damaged_file_is_reported_with_a_remedy(tmp_path: Path, name: str):
    prepare_certificates(tmp_path, ["localhost"])
    (tmp_path / name).write_text("garbage")
    with pytest.raises(CertificateError, match=r"damaged.*remove the folder"):
        prepare_certificates(tmp_path, ["localhost", "other"])
