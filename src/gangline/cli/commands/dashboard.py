"""``dashboard``: the web interface; ``dashboard serve`` is its server on a cluster."""

import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.component_logging import logging_options, start_logging
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.event_loop import import_aiohttp
from gangline.cli.params.command import group, section
from gangline.cli.params.component_options import (
    BindAddress,
    CommaSeparated,
    default_address,
    env_flag,
    env_option,
    monitoring_options,
)
from gangline.cli.params.options import cluster_options

if TYPE_CHECKING:
    from gangline.cli.params.target import ClusterTarget
    from gangline.dashboard.settings import DashboardSettings

PREFIX = "GANGLINE_DASHBOARD"
_option, _flag = partial(env_option, PREFIX), partial(env_flag, PREFIX)


@group(
    "dashboard",
    examples="""
        gangline dashboard
        gangline dashboard --port 8080 --no-open
        gangline dashboard --read-only --context production
    """,
    invoke_without_command=True,
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Local port; 0 selects a free port."
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option("--read-only", is_flag=True, help="Offer no actions.")
@click.option(
    "--record", default="", metavar="URL", help="Address of the Brain that has the record of jobs."
)
@cluster_options
@click.pass_context
def dashboard_command(
    context: click.Context,
    /,
    target: "ClusterTarget",
    port: int,
    no_open: bool,
    read_only: bool,
    record: str,
) -> None:
    """Open the dashboard: jobs, queues and nodes in a browser, with your own rights.

    It runs on this machine until Ctrl-C, for you alone: the address holds a token. On the embedded
    cluster, one that 'gangline up --dashboard' has started is opened.
    """
    if context.invoked_subcommand is not None:
        return
    import_aiohttp()
    from gangline.dashboard.settings import DashboardSettings
    from gangline.kube.probes import Address

    running = target.embedded_cluster()
    if running is not None and not (port or read_only or record):
        from gangline.dashboard.address_file import read_address

        if address := read_address(running.folder):
            _open(address, browser=not no_open, waits=True)
            return
    settings = DashboardSettings(
        address=Address("127.0.0.1", port), read_only=read_only, record=record
    )
    _serve(target, settings, browser=not no_open)


@dashboard_command.command(
    "serve",
    examples="""
        gangline dashboard serve --auth token --address :8443
        gangline dashboard serve --auth header --trusted-proxy 10.0.0.7
    """,
)
@cluster_options
@_option(
    "--address",
    type=BindAddress(),
    default=lambda: default_address(":8443", "127.0.0.1:0"),
    show_default=":8443 in a cluster, else a free port of 127.0.0.1",
    help="Address to listen on.",
)
@_option(
    "--auth",
    type=click.Choice(["local", "token", "header", "oidc"]),
    default="token",
    show_default=True,
    help="How viewers log in: the printed address, a token of Kubernetes, headers of an "
    "authenticating proxy, or OpenID Connect.",
)
@_option("--base-path", default="", help="Prefix of all addresses behind a proxy: /gangline.")
@_flag("--read-only", help="Offer no actions, and accept none.")
@_option(
    "--namespace",
    "-n",
    "namespaces",
    type=CommaSeparated(),
    multiple=True,
    help="Show this namespace only; may be repeated.",
)
@_option("--record", default="", help="Address of the Brain that has the record of jobs.")
@section(
    "HTTPS",
    _option("--tls-cert-file", default="", help="Certificate of the server."),
    _option("--tls-key-file", default="", help="Key of the certificate."),
    _option("--client-ca-file", default="", help="Require client certificates of this authority."),
)
@section(
    "--auth header",
    _option("--user-header", default="X-Remote-User", show_default=True, help="The user's name."),
    _option(
        "--group-header",
        default="X-Remote-Group",
        show_default=True,
        help="The user's groups, separated by commas.",
    ),
    _option(
        "--trusted-proxy",
        "trusted_proxies",
        type=CommaSeparated(),
        multiple=True,
        help="Address or network whose headers are believed; may be repeated.",
    ),
)
@section(
    "--auth oidc",
    _option("--oidc-issuer", default="", help="Address of the provider."),
    _option("--oidc-client-id", default="", help="Name of this client at the provider."),
    _option(
        "--oidc-client-secret-file",
        default="",
        help="File with the client's secret; none for a public client.",
    ),
    _option("--oidc-redirect-url", default="", help="https://HOST/oidc/callback of this server."),
    _option(
        "--oidc-scopes",
        default="openid email groups",
        show_default=True,
        help="Scopes that are requested.",
    ),
    _option(
        "--oidc-username-claim", default="email", show_default=True, help="Claim with the name."
    ),
    _option(
        "--oidc-groups-claim", default="groups", show_default=True, help="Claim with the groups."
    ),
    _flag(
        "--oidc-pass-token",
        help="Send the ID token to the API server, which must accept it, instead of impersonating.",
    ),
)
@section("Logs, metrics and probes", *monitoring_options(_option))
@logging_options(PREFIX)
def serve_command(target: "ClusterTarget", log_level: str, log_format: str, **flags: Any) -> None:
    """Serve the dashboard, on Kubernetes for several users.

    Every page is filtered by what its viewer may read, and actions are done with the viewer's own
    rights. Modes header and oidc impersonate users, which the server must be allowed to.
    """
    import_aiohttp()
    settings = build_dashboard_settings(flags)
    start_logging(log_level, form=log_format)
    _serve(target, settings, browser=False)


def build_dashboard_settings(flags: dict[str, Any]) -> "DashboardSettings":
    """Build the settings from the values of the flags.

    Raises:
        CommandError: they contradict each other, or the file of the secret cannot be read.
    """
    from gangline.dashboard.settings import (
        BadDashboardSettings,
        DashboardSettings,
        LoginMode,
        parse_networks,
    )

    if flags["address"] is None:
        raise CommandError("--address: the server needs an address", code=ExitCode.USAGE)
    secret = _read_secret(flags.pop("oidc_client_secret_file"))
    changed: dict[str, Any] = {
        "auth": LoginMode(flags["auth"]),
        "namespaces": _joined(flags["namespaces"]),
        "oidc_client_secret": secret,
    }
    try:
        changed["trusted_proxies"] = parse_networks(_joined(flags["trusted_proxies"]))
        settings = DashboardSettings(**flags | changed)
        settings.check()
    except BadDashboardSettings as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from error
    return settings


def _joined(values: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return tuple(name for names in values for name in names)


def _read_secret(path: str) -> str:
    from pathlib import Path

    try:
        return Path(path).read_text(encoding="utf-8").strip() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        message = f"--oidc-client-secret-file: {path} cannot be read: {error}"
        raise CommandError(message, code=ExitCode.USAGE) from error


def _serve(target: "ClusterTarget", settings: "DashboardSettings", *, browser: bool) -> None:
    from gangline.dashboard.run import run

    def announce(address: str) -> None:
        _open(address, browser=browser)
        click.echo("Ctrl-C stops it.", err=True)

    target.serve("gangline-dashboard", lambda client, stop: run(client, settings, stop, announce))


def _open(address: str, *, browser: bool, waits: bool = False) -> None:
    """Print an address, and open it in the browser of a user who sits before the terminal.

    ``waits``: the command ends when the browser has started, not before.
    """
    click.echo(f"Dashboard: {address}")
    sys.stdout.flush()
    if not (browser and sys.stdout.isatty()):
        return
    import webbrowser

    # A browser may start slowly, or run in the terminal until it is closed.
    threading.Thread(target=webbrowser.open, args=(address,), daemon=not waits).start()
