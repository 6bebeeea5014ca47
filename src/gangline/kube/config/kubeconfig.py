"""Kubeconfig files: read, merged as kubectl does, one context selected.

If several files define a cluster, user, context or current context, the first one counts. Relative
paths are relative to their file. Every error names the file and a remedy.
"""

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gangline.kube.config.credentials import (
    EXEC_VERSIONS,
    Credential,
    CredentialSource,
    ExecPlugin,
    StaticCredential,
    TokenFile,
    basic_authorization,
    check_token,
)
from gangline.kube.errors import ConfigError


class _Kebab(msgspec.Struct, rename="kebab"):
    """Field names of a kubeconfig have hyphens."""


class KubeconfigCluster(_Kebab):
    """Address and certificate authority of an API server."""

    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class ExecEnvVar(msgspec.Struct):
    """One environment variable of a credential plug-in."""

    name: str
    value: str = ""


class ExecConfig(msgspec.Struct, rename="camel"):
    """A credential plug-in."""

    command: str = ""
    api_version: str = ""
    args: list[str] | None = None
    env: list[ExecEnvVar] | None = None
    install_hint: str | None = None
    interactive_mode: str | None = None
    provide_cluster_info: bool = False


class KubeconfigUser(_Kebab):
    """Credentials of a user."""

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    exec: ExecConfig | None = None
    auth_provider: dict[str, Any] | None = None
    as_: str | None = msgspec.field(name="as", default=None)
    as_uid: str | None = None
    as_groups: list[str] | None = None


class KubeconfigContext(msgspec.Struct):
    """A cluster, a user, and the default namespace."""

    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: KubeconfigCluster | None = None


class _NamedUser(msgspec.Struct):
    name: str
    user: KubeconfigUser | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: KubeconfigContext | None = None


class _File(_Kebab):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = None


@dataclass(slots=True)
class Kubeconfig:
    """The merged files. Each entry has the directory that its relative paths start from."""

    origin: str
    clusters: dict[str, tuple[KubeconfigCluster, Path]] = field(default_factory=dict)
    users: dict[str, tuple[KubeconfigUser, Path]] = field(default_factory=dict)
    contexts: dict[str, KubeconfigContext] = field(default_factory=dict)
    current_context: str = ""


def read_kubeconfig(paths: list[Path]) -> Kubeconfig:
    """Read and merge files.

    Raises:
        ConfigError: a file cannot be read or is not a kubeconfig.
    """
    merged = Kubeconfig(origin=", ".join(str(path) for path in paths))
    for path in paths:
        _merge(merged, _read_file(path), path.absolute().parent)
    return merged


def _merge(merged: Kubeconfig, file: _File, folder: Path) -> None:
    for cluster in file.clusters or []:
        merged.clusters.setdefault(cluster.name, (cluster.cluster or KubeconfigCluster(), folder))
    for user in file.users or []:
        merged.users.setdefault(user.name, (user.user or KubeconfigUser(), folder))
    for context in file.contexts or []:
        merged.contexts.setdefault(context.name, context.context or KubeconfigContext())
    merged.current_context = merged.current_context or file.current_context or ""


def _read_file(path: Path) -> _File:
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(
            f"the kubeconfig {path} does not exist: check the path, or unset KUBECONFIG"
        ) from error
    except OSError as error:
        raise ConfigError(f"the kubeconfig {path} cannot be read: {error.strerror}") from error
    content = _read_yaml(path, text)
    if content is None:
        raise ConfigError(f"the kubeconfig {path} is empty")
    if not isinstance(content, dict):
        raise ConfigError(f"the kubeconfig {path} is not a kubeconfig: it is not a mapping")
    try:
        return msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the kubeconfig {path} is not a kubeconfig: {error}") from error


def _read_yaml(path: Path, text: bytes) -> Any:
    import yaml

    from gangline.api.yaml_values import YamlValueLoader

    try:
        return yaml.load(text, Loader=YamlValueLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the kubeconfig {path} is not YAML: {reason}") from error


def select_context(kubeconfig: Kubeconfig, context: str | None) -> tuple[str, KubeconfigContext]:
    """Return the given context, or the current one if None.

    Raises:
        ConfigError: there is no such context.
    """
    name = context or kubeconfig.current_context
    contexts = ", ".join(sorted(kubeconfig.contexts)) or "none"
    if not name:
        raise ConfigError(
            f"{kubeconfig.origin} has no current-context: name one with --context or "
            f"`kubectl config use-context` (known: {contexts})"
        )
    if name not in kubeconfig.contexts:
        raise ConfigError(f"{kubeconfig.origin} has no context {name!r} (known: {contexts})")
    return name, kubeconfig.contexts[name]


def find_cluster(kubeconfig: Kubeconfig, context: str) -> tuple[KubeconfigCluster, Path]:
    """Return the cluster of a context, and the directory that its paths start from.

    Raises:
        ConfigError: the cluster does not exist, or has no valid address.
    """
    name = kubeconfig.contexts[context].cluster
    if name not in kubeconfig.clusters:
        clusters = ", ".join(sorted(kubeconfig.clusters)) or "none"
        raise ConfigError(
            f"context {context!r} in {kubeconfig.origin} names the cluster {name!r}, which is not "
            f"there (known: {clusters})"
        )
    cluster, folder = kubeconfig.clusters[name]
    if not cluster.server.startswith(("https://", "http://")):
        raise ConfigError(
            f"cluster {name!r} in {kubeconfig.origin} has the server {cluster.server!r}: it must "
            "start with https:// or http://"
        )
    try:
        usable = urlsplit(cluster.server).port != 0 and urlsplit(cluster.server).hostname
    except ValueError:  # an unclosed bracket, or a port above 65535
        usable = None
    if not usable:
        raise ConfigError(
            f"cluster {name!r} in {kubeconfig.origin} has the server {cluster.server!r}, which is "
            "no address: write one such as https://127.0.0.1:6443"
        )
    return cluster, folder


def find_user(kubeconfig: Kubeconfig, context: str) -> tuple[KubeconfigUser, Path]:
    """Return the user of a context, and the directory that its paths start from; an empty one if
    unset.

    Raises:
        ConfigError: the user does not exist.
    """
    name = kubeconfig.contexts[context].user
    if not name:
        return KubeconfigUser(), Path()
    if name not in kubeconfig.users:
        users = ", ".join(sorted(kubeconfig.users)) or "none"
        raise ConfigError(
            f"context {context!r} in {kubeconfig.origin} names the user {name!r}, which is not "
            f"there (known: {users})"
        )
    return kubeconfig.users[name]


def certificate_authority(cluster: KubeconfigCluster, folder: Path) -> bytes | None:
    """Return the CA certificates (PEM) of the server; None means the system's."""
    return _inline_or_file(
        cluster.certificate_authority_data,
        cluster.certificate_authority,
        folder,
        "certificate-authority",
    )


def credential_source(
    user: KubeconfigUser, cluster: KubeconfigCluster, folder: Path
) -> CredentialSource:
    """Return the source of a user's credentials.

    Raises:
        ConfigError: a file is missing or unreadable, or the kind of credential is not supported.
    """
    if user.auth_provider:
        raise ConfigError(
            f"the auth-provider {user.auth_provider.get('name')!r} is no longer supported by "
            "Kubernetes: use an exec plugin (users[].user.exec), as your provider describes"
        )
    certificate = _inline_or_file(
        user.client_certificate_data, user.client_certificate, folder, "client-certificate"
    )
    key = _inline_or_file(user.client_key_data, user.client_key, folder, "client-key")
    if bool(certificate) != bool(key):
        present, absent = (
            ("client-certificate", "client-key")
            if certificate
            else ("client-key", "client-certificate")
        )
        raise ConfigError(f"the user has a {present} and no {absent}: give both or neither")
    if user.exec is not None:
        return _exec_plugin(user.exec, cluster, folder)
    if user.token:
        token = check_token(user.token, "the user's token")
        return StaticCredential(Credential(f"Bearer {token}", certificate, key))
    if user.token_file:
        return TokenFile(folder / Path(user.token_file).expanduser(), certificate, key)
    authorization = basic_authorization(user.username, user.password or "") if user.username else ""
    return StaticCredential(Credential(authorization, certificate, key))


def impersonation_headers(user: KubeconfigUser) -> tuple[tuple[str, str], ...]:
    """Return the headers for impersonation of another user."""
    headers = [("Impersonate-User", user.as_)] if user.as_ else []
    headers += [("Impersonate-Uid", user.as_uid)] if user.as_uid else []
    return (*headers, *(("Impersonate-Group", group) for group in user.as_groups or []))


def _exec_plugin(config: ExecConfig, cluster: KubeconfigCluster, folder: Path) -> ExecPlugin:
    if not config.command:
        raise ConfigError("the user's exec plugin has no command")
    if config.api_version not in EXEC_VERSIONS:
        raise ConfigError(
            f"the exec plugin {config.command!r} uses {config.api_version or 'no version'}: "
            f"users[].user.exec.apiVersion must be one of {', '.join(EXEC_VERSIONS)}"
        )
    relative = "/" in config.command and not config.command.startswith("/")
    return ExecPlugin(
        command=str(folder / config.command) if relative else config.command,
        arguments=tuple(config.args or ()),
        environment={variable.name: variable.value for variable in config.env or []},
        api_version=config.api_version,
        install_hint=(config.install_hint or "").strip(),
        interactive_mode=config.interactive_mode or "IfAvailable",
        cluster=_cluster_info(cluster, folder) if config.provide_cluster_info else None,
    )


def _cluster_info(cluster: KubeconfigCluster, folder: Path) -> dict[str, Any]:
    authority = certificate_authority(cluster, folder)
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify or None,
        "certificate-authority-data": base64.b64encode(authority).decode() if authority else None,
        "proxy-url": cluster.proxy_url,
    }
    return {key: value for key, value in info.items() if value}


def _inline_or_file(
    inline: str | None, path: str | None, folder: Path, field_name: str
) -> bytes | None:
    if inline:
        try:
            return base64.b64decode("".join(inline.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigError(
                f"{field_name}-data is not base64 ({error}): it must be the encoded PEM file"
            ) from error
    if not path:
        return None
    file = folder / Path(path).expanduser()
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"the {field_name} {file} cannot be read: {error.strerror}") from error
