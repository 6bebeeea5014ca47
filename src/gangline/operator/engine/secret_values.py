"""Values of Secrets, made when a Secret is created: plans contain placeholders only."""

import secrets

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gangline.operator.model.job import Manifest
from gangline.operator.model.plan import RANDOM_VALUE, SSH_PRIVATE_KEY, SSH_PUBLIC_KEY

_RANDOM_BYTES = 32
_PLACEHOLDERS = frozenset({RANDOM_VALUE, SSH_PRIVATE_KEY, SSH_PUBLIC_KEY})


def with_values(manifest: Manifest) -> Manifest:
    """Replace the placeholders in a Secret by new values; other manifests are returned as is."""
    written = manifest.get("stringData") or {}
    used = _PLACEHOLDERS & set(written.values())
    if not used:
        return manifest
    pair = _ssh_key_pair() if used & {SSH_PRIVATE_KEY, SSH_PUBLIC_KEY} else {}
    values = {key: _value(value, pair) for key, value in written.items()}
    return {**manifest, "stringData": values}


def _value(written: str, pair: dict[str, str]) -> str:
    if written == RANDOM_VALUE:
        return secrets.token_hex(_RANDOM_BYTES)
    return pair.get(written, written)


def _ssh_key_pair() -> dict[str, str]:
    """Make the two keys of a pair, by their placeholders: ECDSA on P-521, as mpi-operator's."""
    key = ec.generate_private_key(ec.SECP521R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return {SSH_PRIVATE_KEY: private.decode(), SSH_PUBLIC_KEY: f"{public.decode()}\n"}
