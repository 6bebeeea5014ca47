"""Keys and certificates of the channel, beside those of the ``cryptography`` package."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.elastic.protocol.certificate import SigningKey, derive_identity


@settings(max_examples=25)
@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=200))
def test_public_keys_and_signatures_are_those_of_rfc_8032(seed: bytes, message: bytes) -> None:
    ours, theirs = SigningKey(seed), Ed25519PrivateKey.from_private_bytes(seed)
    assert ours.public == theirs.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert ours.sign(message) == theirs.sign(message)


@pytest.mark.parametrize("role", ["client", "server"])
def test_a_certificate_is_signed_by_the_key_that_hkdf_derives(role: str) -> None:
    secret = bytes(range(32))
    identity = derive_identity(secret, role)
    info = f"gangline elastic 2 {role}".encode()
    assert identity.seed == HKDF(SHA256(), 32, None, info).derive(secret)
    key = load_pem_private_key(identity.to_pem(), None)
    assert isinstance(key, Ed25519PrivateKey)
    certificate = x509.load_der_x509_certificate(identity.certificate)
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(certificate)
    assert certificate.subject.rfc4514_string() == "CN=gangline job"
    assert certificate.not_valid_after_utc.year == 9999
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca) == (True, True)
