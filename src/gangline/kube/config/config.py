"""The configuration of a cluster: its address and our credentials.

Sources, in this order: the file named by the caller, ``KUBECONFIG``, the service account of the
current pod, ``~/.kube/config``, the embedded cluster of this machine: the one named ``default``
(``$GANGLINE_HOME/kubeconfig``), or the only one that runs.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gangline.kube.config.credentials import (
    CredentialSource,
    StaticCredential,
    TokenFile,
    read_token,
)
from gangline.kube.config.kubeconfig import (
    certificate_authority,
    credential_source,
    find_cluster,
    find_user,
    impersonation_headers,
    read_kubeconfig,
    select_context,
)
from gangline.kube.errors import ConfigError

__all__ = ["ClusterConfig", "ConfigError", "load_config"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Address, credentials and TLS settings of one API server."""

    server: str
    """Base URL of the server, such as ``https://127.0.0.1:6443``."""
    namespace: str = "default"
    """The default namespace."""
    credentials: CredentialSource = field(default_factory=StaticCredential)
    certificate_authority: bytes | None = None
    """CA certificates in PEM; None means that the system's are trusted."""
    verify: bool = True
    """Whether the certificate of the server is verified. Off only if the user says so explicitly.
    """
    tls_server_name: str = ""
    """The name in the server's certificate, if it differs from the host in ``server``."""
    proxy_url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    context: str = ""
    """The name of the kubeconfig context; empty without a kubeconfig."""
    origin: str = ""
    """Where the configuration was read from, for messages."""

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine, where compression is a waste of processor time."""
        return is_loopback(urlsplit(self.server).hostname or "")


def load_config(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """Find and read the configuration of a cluster.

    Raises:
        ConfigError: there is none, or it is invalid; the message contains a remedy.
    """
    if kubeconfig:
        return _from_files([Path(kubeconfig).expanduser()], context, environment)
    if named := [
        Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part
    ]:
        # As kubectl does: of several files some may be missing, but a single one must exist.
        present = [path for path in named if path.exists()]
        return _from_files(present or named[:1], context, environment)
    if environment.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
        return _in_cluster(environment, service_account)
    path = Path(environment.get("HOME") or Path.home()) / ".kube" / "config"
    if not path.exists():
        path = _embedded_kubeconfig(environment)
    return _from_files([path], context, environment)


def _embedded_kubeconfig(environment: Mapping[str, str]) -> Path:
    """Return the kubeconfig of the default cluster unless only another one runs.

    Raises:
        ConfigError: there is none, or several run and none of them is the default.
    """
    from gangline.kube.config.embedded import embedded_home, running_clusters

    home = embedded_home(environment)
    default = home / "kubeconfig"
    running = {cluster.name: cluster.kubeconfig for cluster in running_clusters(home)}
    if default.exists() and ("default" in running or not running):
        return default
    if len(running) == 1:
        return next(iter(running.values()))
    if running:
        flags = "".join(f"\n  {name}: --kubeconfig {path}" for name, path in running.items())
        raise ConfigError(
            f"{len(running)} embedded clusters run on this machine; choose one with a flag, or set "
            f"KUBECONFIG to its file:{flags}"
        )
    raise ConfigError(
        "no cluster is configured: start one on this machine with `gangline up`, or point "
        "KUBECONFIG or --kubeconfig at the kubeconfig of a Kubernetes cluster"
    )


def _from_files(
    paths: list[Path], context_name: str | None, environment: Mapping[str, str]
) -> ClusterConfig:
    kubeconfig = read_kubeconfig(paths)
    name, context = select_context(kubeconfig, context_name)
    cluster, cluster_folder = find_cluster(kubeconfig, name)
    user, user_folder = find_user(kubeconfig, name)
    return ClusterConfig(
        server=cluster.server.rstrip("/"),
        namespace=context.namespace or "default",
        credentials=credential_source(user, cluster, user_folder),
        certificate_authority=certificate_authority(cluster, cluster_folder),
        verify=not cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name or "",
        proxy_url=cluster.proxy_url or _environment_proxy(cluster.server, environment),
        headers=impersonation_headers(user),
        context=name,
        origin=kubeconfig.origin,
    )


def _in_cluster(environment: Mapping[str, str], service_account: Path) -> ClusterConfig:
    host = environment["KUBERNETES_SERVICE_HOST"]
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    token_file = service_account / "token"
    read_token(token_file)
    return ClusterConfig(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=_read_text(service_account / "namespace") or "default",
        credentials=TokenFile(token_file),
        certificate_authority=_read_text(service_account / "ca.crt").encode() or None,
        origin=str(service_account),
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} of the service account cannot be read: {error}") from error


def _environment_proxy(server: str, environment: Mapping[str, str]) -> str:
    """Return the proxy of the environment; empty for this machine and for hosts in NO_PROXY."""
    address = urlsplit(server)
    name = f"{address.scheme}_proxy"
    proxy = environment.get(name.upper()) or environment.get(name) or ""
    exempt = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    host = address.hostname or ""
    if is_loopback(host) or any(_covers_host(entry.strip(), host) for entry in exempt.split(",")):
        return ""
    return proxy


def _covers_host(entry: str, host: str) -> bool:
    """Whether an entry of a NO_PROXY list (a name, a domain, a network, ``*``) covers a host."""
    if not entry:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        domain = entry.removeprefix("*").removeprefix(".")
        return entry == "*" or host == domain or host.endswith(f".{domain}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
