"""Options that components share: leader election, metrics, probes; audit log and store of the API
server.

Options of operator and Brain can be set by environment variables too. A flag takes precedence over
the environment, our variable over the variable of the upstream operator, and both over the default.
Values may have the forms that manifests of upstream operators use: ``--leader-elect=true``,
``:8080``, ``1h30m``; lists by repeating the flag or by commas.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gangline.cli.params.command import section

if TYPE_CHECKING:
    from gangline.kube.controller.leader_election import LeaderElectionTiming
    from gangline.kube.probes import Address
    from gangline.local.apiserver.audit import AuditSettings

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_HIGHEST_PORT = 65535
_TIMING = ("lease-duration", "renew-deadline", "retry-period")
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace() -> str:
    """Return the namespace of the component's pod; outside a cluster kube-system."""
    own = os.environ.get("MY_POD_NAMESPACE", "")
    if not own and _NAMESPACE_FILE.exists():
        own = _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    return own or "kube-system"


def default_address(address: str, elsewhere: str = "0") -> str:
    """Return the default address: fixed ports in a pod, but not on a workstation."""
    return address if os.environ.get("KUBERNETES_SERVICE_HOST") else elsewhere


_AUDIT_OPTIONS = section(
    "Audit",
    click.option(
        "--audit-log",
        type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
        help="File of audit events: who requested what from the API server.",
    ),
    click.option(
        "--audit-log-maxsize",
        type=click.IntRange(1),
        default=100,
        show_default=True,
        help="Size in MiB at which the file of --audit-log is rotated.",
    ),
    click.option(
        "--audit-log-maxbackup",
        type=click.IntRange(0),
        default=10,
        show_default=True,
        help="Number of rotated files of --audit-log to keep.",
    ),
)


def audit_options(command: F) -> F:
    """Add the options. A relative path is resolved: the cluster may run in the background."""
    return _AUDIT_OPTIONS(command)


def audit_settings(
    audit_log: Path | None, audit_log_maxsize: int, audit_log_maxbackup: int
) -> "AuditSettings | None":
    """Return the settings of the given options; None without a file."""
    from gangline.local.apiserver.audit import AuditSettings

    if audit_log is None:
        return None
    return AuditSettings(audit_log, audit_log_maxsize, audit_log_maxbackup)


durability_option = click.option(
    "--durability",
    type=click.Choice(["disk", "process"]),
    default="disk",
    show_default=True,
    help="Answer a write when it survives a power failure (disk), or a killed process (process).",
)
encryption_key_option = click.option(
    "--encryption-key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of keys that encrypt Secrets at rest; default: a generated key.",
)


class _EnvOption(click.Option):
    """An option whose errors name its environment variable: the value may come from there."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        variables = [self.envvar] if isinstance(self.envvar, str) else self.envvar or []
        return " or ".join([super().get_error_hint(ctx), *variables])


def env_option(prefix: str, *names: str, upstream: str = "", **options: Any) -> Callable[[F], F]:
    """Add an option that ``PREFIX_FLAG`` and the variable of the upstream operator can set."""
    flag = next(name for name in names if name.startswith("--")).removeprefix("--")
    own = f"{prefix}_{flag}".replace("-", "_").upper()
    variables = [own, upstream] if upstream else [own]
    return click.option(*names, cls=_EnvOption, envvar=variables, **options)


def env_flag(prefix: str, *names: str, **options: Any) -> Callable[[F], F]:
    """Add a boolean option of this kind: ``--flag``, ``--flag=true``, ``--flag=false``."""
    return env_option(
        prefix, *names, type=bool, is_flag=False, flag_value="true", default=False, **options
    )


class CommaSeparated(click.ParamType[tuple[str, ...]]):
    """One or several names, separated by commas."""

    name = "name"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split at commas and drop empty parts."""
        return tuple(part.strip() for part in str(value).split(",") if part.strip())


class Duration(click.ParamType[float]):
    """A duration such as ``90``, ``1.5s`` or ``1h30m``, in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        if re.fullmatch(r"\d+(?:\.\d+)?", text):
            return float(text)
        if not _DURATION.fullmatch(text):
            self.fail(f"{text!r} is not a duration; write 30s, 15m or 1h30m", param, ctx)
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
        return round(seconds, 9)  # without the error of the sum


class ByteSize(click.ParamType[int]):
    """An amount of memory or disk such as ``10Gi``, in bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from gangline.api.quantity import QuantityError, parse_quantity

        try:
            size = int(parse_quantity(str(value).strip()).value)
        except QuantityError as error:
            self.fail(f"{value!r} {error.problem}; write 500Mi or 10Gi", param, ctx)
        if size <= 0:
            self.fail(f"{value!r} must be above 0; write 500Mi or 10Gi", param, ctx)
        return size


class BindAddress(click.ParamType["Address | None"]):
    """An address to listen on: ``:8080``, ``127.0.0.1:8080``, ``[::1]:8080``; ``0`` disables the
    server.
    """

    name = "host:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> "Address | None":
        """Split host and port; None for ``0``."""
        from gangline.kube.probes import Address

        text = str(value).strip()
        if text == "0":
            return None
        host, colon, port = text.rpartition(":")
        fits = port.isascii() and port.isdigit() and int(port) <= _HIGHEST_PORT
        bare = ":" not in host or (host.startswith("[") and host.endswith("]"))
        if not (colon and fits and bare):
            self.fail(f"{text!r} is not an address; write :8080, 127.0.0.1:8080 or 0", param, ctx)
        return Address(host.strip("[]"), int(port))


def election_timing_options(option: Callable[..., Decorator]) -> tuple[Decorator, ...]:
    """Return the options; ``option`` makes one of the component."""
    return (
        option(
            "--leader-elect-lease-duration",
            "lease_duration",
            type=Duration(),
            default="15s",
            show_default=True,
            help="Duration after which another replica may take a lease that was not renewed.",
        ),
        option(
            "--leader-elect-renew-deadline",
            "renew_deadline",
            type=Duration(),
            default="10s",
            show_default=True,
            help="Duration after which a leader that cannot renew stops.",
        ),
        option(
            "--leader-elect-retry-period",
            "retry_period",
            type=Duration(),
            default="2s",
            show_default=True,
            help="Interval between attempts to acquire or renew the lease.",
        ),
    )


def monitoring_options(option: Callable[..., Decorator]) -> tuple[Decorator, ...]:
    """Return the addresses of metrics and probes; ``option`` makes one of the component."""
    return (
        option(
            "--metrics-bind-address",
            type=BindAddress(),
            default=lambda: default_address(":8080"),
            show_default=":8080 in a cluster, else 0",
            help="Address of /metrics; 0 disables it.",
        ),
        option(
            "--health-probe-bind-address",
            type=BindAddress(),
            default=lambda: default_address(":8081"),
            show_default=":8081 in a cluster, else 0",
            help="Address of /healthz and /readyz; 0 disables them.",
        ),
    )


def take_election_timing(flags: dict[str, Any]) -> "LeaderElectionTiming":
    """Remove the values of the options from the flags, and return them.

    Raises:
        click.BadParameter: with these values two replicas could lead.
    """
    from gangline.kube.controller.leader_election import LeaderElectionTiming

    lease_duration, renew_deadline, retry_period = (
        flags.pop(name.replace("-", "_")) for name in _TIMING
    )
    try:
        return LeaderElectionTiming(round(lease_duration), renew_deadline, retry_period)
    except ValueError as error:
        names = (f"'--leader-elect-{name}'" for name in _TIMING)
        raise click.BadParameter(str(error), param_hint=" / ".join(names)) from error
