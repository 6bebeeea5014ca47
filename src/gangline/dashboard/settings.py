"""Settings of the dashboard's server, built once by the command line and passed down."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from gangline.kube.probes import Address

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class BadDashboardSettings(ValueError):
    """The settings contradict each other; the message names the flag and the remedy."""


class LoginMode(StrEnum):
    """How viewers prove who they are."""

    LOCAL = "local"
    """One user of this machine, by a random token in the printed address."""
    TOKEN = "token"
    """By a token of Kubernetes."""
    HEADER = "header"
    """By headers of an authenticating proxy; the server impersonates the user."""
    OIDC = "oidc"
    """By OpenID Connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """The flags of ``gangline dashboard serve``, which explains them."""

    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0))
    auth: LoginMode = LoginMode.LOCAL
    base_path: str = ""
    """Prefix of all addresses behind a proxy, such as ``/gangline``; empty for none."""
    read_only: bool = False
    namespaces: tuple[str, ...] = ()
    """The namespaces that are watched; empty for all."""
    record: str = ""
    """Address of the Brain that has the record of jobs; empty: as it has published it."""
    tls_cert_file: str = ""
    """Empty for plain HTTP."""
    tls_key_file: str = ""
    client_ca_file: str = ""
    """Authority of client certificates, which are then required (mutual TLS)."""
    user_header: str = "X-Remote-User"
    group_header: str = "X-Remote-Group"
    trusted_proxies: tuple[IPNetwork, ...] = ()
    """Addresses whose headers are believed."""
    oidc_issuer: str = ""
    oidc_client_id: str = ""
    oidc_client_secret: str = field(default="", repr=False)
    """Empty for a public client, which PKCE alone protects."""
    oidc_redirect_url: str = ""
    """The address of ``/oidc/callback`` that the provider knows."""
    oidc_scopes: str = "openid email groups"
    oidc_username_claim: str = "email"
    oidc_groups_claim: str = "groups"
    oidc_pass_token: bool = False
    """True if the API server accepts ID tokens of the provider; else the server impersonates."""
    metrics_bind_address: Address | None = None
    health_probe_bind_address: Address | None = None

    def check(self) -> None:
        """Raise ``BadDashboardSettings`` if the settings contradict each other."""
        if self.base_path and (not self.base_path.startswith("/") or self.base_path.endswith("/")):
            raise BadDashboardSettings(
                f"--base-path: {self.base_path!r} must begin with a slash and not end with one, "
                "such as /gangline"
            )
        if bool(self.tls_cert_file) is not bool(self.tls_key_file):
            raise BadDashboardSettings("--tls-cert-file and --tls-key-file: give both or none")
        if self.client_ca_file and not self.tls_cert_file:
            raise BadDashboardSettings("--client-ca-file needs --tls-cert-file and --tls-key-file")
        if self.auth is LoginMode.LOCAL and self.address.host not in _LOOPBACK:
            raise BadDashboardSettings(
                f"--auth local is for one user of this machine and listens on 127.0.0.1, not on "
                f"{self.address.host or 'all addresses'}: use --auth token, header or oidc"
            )
        is_proven = self.trusted_proxies or self.client_ca_file
        if self.auth is LoginMode.HEADER and not is_proven:
            raise BadDashboardSettings(
                "--auth header believes headers only of a proxy that is known: give its address "
                "with --trusted-proxy, or require its certificate with --client-ca-file"
            )
        if self.auth is LoginMode.OIDC:
            self._check_oidc()

    def _check_oidc(self) -> None:
        urls = {"--oidc-issuer": self.oidc_issuer, "--oidc-redirect-url": self.oidc_redirect_url}
        for flag, value in {**urls, "--oidc-client-id": self.oidc_client_id}.items():
            if not value:
                raise BadDashboardSettings(f"--auth oidc needs {flag}")
        for flag, url in urls.items():
            parts = urlsplit(url)
            if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
                raise BadDashboardSettings(f"{flag}: {url!r} must begin with https://")


def parse_networks(texts: Sequence[str]) -> tuple[IPNetwork, ...]:
    """Parse addresses and networks such as ``10.0.0.0/8``, or raise ``BadDashboardSettings``."""
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text, strict=False))
        except ValueError as error:
            raise BadDashboardSettings(
                f"--trusted-proxy: {text!r} is no address and no network such as 10.0.0.0/8"
            ) from error
    return tuple(networks)
