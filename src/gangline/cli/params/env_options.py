"""Options of components that environment variables can set too.

A flag takes precedence over the environment, our variable over the variable of the upstream
operator, and both over the default. Values may have the forms that manifests of upstream operators
use: ``--leader-elect=true``, ``:8080``, ``1h30m``; lists by repeating the flag or by commas.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gangline.kube.probes import Address

F = TypeVar("F", bound=Callable[..., Any])

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_HIGHEST_PORT = 65535


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
        return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))


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
