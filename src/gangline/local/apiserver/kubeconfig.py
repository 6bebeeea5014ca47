"""The kubeconfig of the administrator: address of the cluster and credentials."""

import base64
from pathlib import Path

import yaml

from gangline.local.apiserver.auth.pki import ServerCertificates
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.storage.durable_files import make_directory, write_durably


def make_kubeconfig(context: str, url: str, certificates: ServerCertificates, token: str) -> Json:
    """Return a self-contained kubeconfig for the administrator."""
    authority = _inline(certificates.authority.certificate)
    cluster = {"server": url, "certificate-authority-data": authority}
    user = {
        "client-certificate-data": _inline(certificates.admin.certificate),
        "client-key-data": _inline(certificates.admin.key),
        "token": token,
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": f"{context}-admin", "user": user}],
        "contexts": [
            {"name": context, "context": {"cluster": context, "user": f"{context}-admin"}}
        ],
        "current-context": context,
    }


def write_kubeconfig(path: Path, config: Json) -> None:
    """Write a kubeconfig that only its owner can read."""
    make_directory(path.parent)
    write_durably(path, yaml.safe_dump(config, sort_keys=False).encode())


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
