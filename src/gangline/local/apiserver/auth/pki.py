"""Certificates: an authority created at the first start, and the certificates that it signs.

All keys are ECDSA P-256, which is fast to generate. The authority lives as long as the data folder.
A certificate is renewed at start if it expires soon or lacks a host name.
The API server identifies itself to kubelets as `API_SERVER_USER`.
"""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gangline.local.apiserver.storage.durable_files import make_directory, write_durably
from gangline.local.kubelet.settings import API_SERVER_USER

LIFETIME = datetime.timedelta(days=3650)
RENEW_BEFORE_EXPIRY = datetime.timedelta(days=30)
CLOCK_SKEW = datetime.timedelta(hours=1)
CLIENT_USAGE = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
ADMIN_GROUP = "system:masters"


@dataclass(frozen=True, slots=True)
class KeyPairFiles:
    """Paths of a certificate and its key."""

    certificate: Path
    key: Path

    @classmethod
    def in_folder(cls, folder: Path, name: str) -> Self:
        return cls(folder / f"{name}.crt", folder / f"{name}.key")

    @property
    def exists(self) -> bool:
        return self.certificate.exists() and self.key.exists()


@dataclass(frozen=True, slots=True)
class ServerCertificates:
    """The certificates of the authority, the server and the administrator."""

    authority: KeyPairFiles
    server: KeyPairFiles
    admin: KeyPairFiles
    kubelet_client: KeyPairFiles
    """The server's own as a client of kubelets."""
    front_proxy: KeyPairFiles
    """The authority of proxies that pass users on in headers. It has signed nothing: API servers of
    others read it at their start, and this server calls none of them.
    """


class CertificateError(Exception):
    """A file of the authority cannot be used. The message contains the folder and a remedy."""


def prepare_certificates(folder: Path, hosts: Sequence[str]) -> ServerCertificates:
    """Create missing or outdated certificates in ``folder`` and return all paths.

    Raises:
        CertificateError: an existing file is damaged.
        OSError: the folder cannot be read or written.
    """
    try:
        return _prepare(folder, hosts)
    except (ValueError, TypeError) as error:
        raise CertificateError(
            f"a certificate or key in {folder} is damaged ({error}): restore it, or remove the "
            "folder to create all certificates again, which invalidates older kubeconfigs"
        ) from error


def _prepare(folder: Path, hosts: Sequence[str]) -> ServerCertificates:
    make_directory(folder, 0o700)
    names = ("ca", "server", "admin", "apiserver-kubelet-client", "front-proxy-ca")
    certificates = ServerCertificates(*(KeyPairFiles.in_folder(folder, name) for name in names))
    for pair in (certificates.authority, certificates.front_proxy):
        if not pair.exists:
            _make_authority(pair)
    authority = ClusterAuthority(certificates.authority)
    if not _is_valid(certificates.server, hosts):
        authority.issue(certificates.server, make_name("gangline-apiserver"), server_options(hosts))
    for pair, user in (
        (certificates.admin, make_name("gangline-admin", ADMIN_GROUP)),
        (certificates.kubelet_client, make_name(API_SERVER_USER)),
    ):
        if not _is_valid(pair):
            authority.issue(pair, user, [CLIENT_USAGE])
    return certificates


def make_name(common: str, organization: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def server_options(hosts: Sequence[str]) -> list[x509.ExtensionType]:
    return [
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName([_general_name(host) for host in hosts]),
    ]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _is_valid(pair: KeyPairFiles, hosts: Sequence[str] = ()) -> bool:
    """Return True for a certificate that does not expire soon, and has all names of a server."""
    if not pair.exists:
        return False
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    if certificate.not_valid_after_utc <= datetime.datetime.now(datetime.UTC) + RENEW_BEFORE_EXPIRY:
        return False
    options = certificate.extensions
    names = options.get_extension_for_class(x509.SubjectAlternativeName).value if hosts else ()
    return {_general_name(host) for host in hosts} <= set(names)


def _make_authority(pair: KeyPairFiles) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = make_name("gangline-ca")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    builder = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write(pair, builder.sign(key, hashes.SHA256()), key)


class ClusterAuthority:
    """Signs certificates with the key of an authority, which is read at the first use."""

    def __init__(self, pair: KeyPairFiles) -> None:
        self._pair = pair

    @cached_property
    def certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self._pair.certificate.read_bytes())

    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        return _read_key(self._pair.key)

    def has_issued(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def issue(
        self,
        pair: KeyPairFiles,
        name: x509.Name,
        options: Sequence[x509.ExtensionType],
        *,
        durably: bool = True,
    ) -> None:
        """Create a key and its certificate, and store both.

        Raises:
            ValueError: a file of the authority is damaged.
            OSError: a file cannot be read or written.
        """
        _write(pair, *self.sign(name, options), durably=durably)

    def sign(
        self, name: x509.Name, options: Sequence[x509.ExtensionType]
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """Return a new certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(name, self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(signer_id, critical=False)
        )
        for option in options:
            builder = builder.add_extension(option, critical=False)
        return builder.sign(self._key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    started = datetime.datetime.now(datetime.UTC) - CLOCK_SKEW
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(started)
        .not_valid_after(started + LIFETIME)
    )


def _write(
    pair: KeyPairFiles,
    certificate: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    *,
    durably: bool = True,
) -> None:
    write_durably(pair.key, encode_key(key), sync=durably)
    # Write order: key first. After an interrupted start no certificate exists, so both are redone.
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    write_durably(pair.certificate, pem, 0o644, sync=durably)


def load_signing_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key that signs tokens; it is created at the first start. Raises CertificateError:
    the file holds no such key.
    """
    if not path.exists():
        write_durably(path, encode_key(ec.generate_private_key(ec.SECP256R1())))
    try:
        return _read_key(path)
    except (ValueError, TypeError) as error:
        raise CertificateError(
            f"{path} is damaged ({error}): restore it, or remove it to create another, which "
            "invalidates the tokens of all service accounts"
        ) from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} holds no elliptic curve key")
    return key


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
