"""Credentials for an API server: tokens, passwords, certificates, credential plug-ins.

A ``Credential`` is sent with one request. A ``CredentialSource`` returns the current one; after a
401 it is asked to refresh it.
"""

import asyncio
import base64
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gangline.kube.errors import ConfigError

TOKEN_FILE_AGE_S = 60.0
"""How long a token from a file is cached: Kubernetes replaces tokens well before they expire."""
EXEC_TIMEOUT_S = 60.0
"""Time limit of a credential plug-in; a person may have to confirm a login in this time."""
EXPIRY_MARGIN_S = 10.0
"""A credential is renewed this long before it expires, so that it is still valid on arrival."""
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class Credential:
    """An Authorization header, and optionally a client certificate (PEM)."""

    authorization: str = ""
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


class CredentialSource(Protocol):
    """Returns the current credential."""

    async def current(self, *, refresh: bool = False) -> Credential:
        """Return the current credential, or a new one if ``refresh``.

        Raises:
            ConfigError: no credential is available.
        """


@dataclass(frozen=True, slots=True)
class StaticCredential:
    """A credential that never changes."""

    credential: Credential = Credential()

    async def current(self, *, refresh: bool = False) -> Credential:
        """Return the credential."""
        return self.credential


@dataclass(slots=True)
class TokenFile:
    """A token in a file that another program keeps current."""

    path: Path
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    clock: Callable[[], float] = time.monotonic
    _credential: Credential | None = field(default=None, init=False)
    _read_at: float = field(default=0.0, init=False)

    async def current(self, *, refresh: bool = False) -> Credential:
        """Return the token; the file is read again after a minute.

        Raises:
            ConfigError: the file cannot be read, or is empty.
        """
        stale = self.clock() - self._read_at > TOKEN_FILE_AGE_S
        if self._credential is None or stale or refresh:
            token = await asyncio.to_thread(read_token, self.path)
            self._credential = Credential(f"Bearer {token}", self.certificate, self.key)
            self._read_at = self.clock()
        return self._credential


def read_token(path: Path) -> str:
    """Read a token from a file.

    Raises:
        ConfigError: the file cannot be read, or is empty.
    """
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}") from error
    if not token:
        raise ConfigError(f"the token file {path} is empty")
    return check_token(token, f"the token file {path}")


def check_token(token: str, where: str) -> str:
    """Return a token if it can be sent in a header.

    Raises:
        ConfigError: it has a line break or another character that headers cannot contain.
    """
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"{where} has line breaks or other characters that a token cannot contain"
        )
    return token


def basic_authorization(username: str, password: str) -> str:
    """Return the Authorization header of a user name and a password."""
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    return f"Basic {pair}"


class _ExecStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


@dataclass(slots=True)
class ExecPlugin:
    """A program that prints a credential (``users[].user.exec`` of a kubeconfig)."""

    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    api_version: str
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    cluster: Mapping[str, Any] | None = None
    """Cluster information for the program, if it asks for it (``provideClusterInfo``)."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _credential: Credential | None = field(default=None, init=False)
    _expires: datetime | None = field(default=None, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def current(self, *, refresh: bool = False) -> Credential:
        """Return the last credential while it is valid, else run the program.

        Raises:
            ConfigError: the program is missing, fails, or prints no credential.
        """
        before = self._credential
        async with self._lock:
            # A task that waited for the lock uses the credential that its predecessor got.
            must_refresh = refresh and self._credential is before
            if self._credential is None or must_refresh or self._expired():
                status = self._parse_output(await self._run())
                self._credential, self._expires = _credential(status), status.expiration_timestamp
            return self._credential

    def _expired(self) -> bool:
        if self._expires is None:
            return False
        return (self._expires - self.now()).total_seconds() < EXPIRY_MARGIN_S

    async def _run(self) -> bytes:
        interactive = self._interactive()
        from shutil import which

        program = which(self.command, path=self.environment.get("PATH", os.environ["PATH"]))
        if program is None:
            raise ConfigError(f"the credential program {self.command!r} is not found{self._hint()}")
        command = (program, *self.arguments)
        environment = {**os.environ, **self.environment, **self._exec_info(interactive)}
        # In a thread: an asyncio subprocess never ends if it is cancelled while it starts, which
        # happens when one of several concurrent requests finds that the program fails.
        return await asyncio.to_thread(self._output, command, environment, interactive)

    def _output(
        self, command: tuple[str, ...], environment: Mapping[str, str], interactive: bool
    ) -> bytes:
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if interactive else subprocess.PIPE,
                timeout=EXEC_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"the credential program {self.command!r} did not end within {EXEC_TIMEOUT_S:.0f} s"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"the credential program {command[0]} does not start: {error}"
            ) from error
        if done.returncode:
            message = (done.stderr or b"").decode(errors="replace").strip()[-500:]
            raise ConfigError(
                f"the credential program {self.command!r} failed with exit code "
                f"{done.returncode}{': ' + message if message else ''}{self._hint()}"
            )
        return done.stdout

    def _interactive(self) -> bool:
        available = sys.stdin is not None and sys.stdin.isatty()
        if self.interactive_mode == "Always" and not available:
            raise ConfigError(
                f"the credential program {self.command!r} is interactive, and there is no "
                "terminal: log in manually first, or use a service account's token"
            )
        return available and self.interactive_mode != "Never"

    def _exec_info(self, interactive: bool) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": interactive}
        if self.cluster is not None:
            spec["cluster"] = dict(self.cluster)
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        return {"KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}

    def _parse_output(self, output: bytes) -> _ExecStatus:
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"the credential program {self.command!r} printed no ExecCredential: {error}"
            ) from error
        if answer.api_version != self.api_version:
            raise ConfigError(
                f"the credential program {self.command!r} uses {answer.api_version!r}, and "
                f"the kubeconfig asks for {self.api_version!r}: change users[].user.exec.apiVersion"
            )
        status = answer.status
        if status is None or not (status.token or status.client_certificate_data):
            raise ConfigError(
                f"the credential program {self.command!r} gave neither token nor certificate"
            )
        return status

    def _hint(self) -> str:
        return f". {self.install_hint}" if self.install_hint else ""


def _credential(status: _ExecStatus) -> Credential:
    return Credential(
        authorization=f"Bearer {status.token}" if status.token else "",
        certificate=status.client_certificate_data.encode() or None,
        key=status.client_key_data.encode() or None,
    )
