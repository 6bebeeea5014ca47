"""The flags of ``gangline operator`` that are about its admission webhook."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from gangline.cli.setting import BindAddress, setting

if TYPE_CHECKING:
    from gangline.operator.webhook.settings import WebhookSettings

_setting = partial(setting, "GANGLINE_OPERATOR")


def _checked_url(_: click.Context, __: click.Parameter, value: str) -> str:
    """Refuse what no API server would call."""
    try:
        parts = urlsplit(value)
        plain = not (parts.query or parts.fragment or parts.username or parts.password)
        parts.port  # noqa: B018 - raises where it is no port
        fits = parts.scheme == "https" and parts.hostname and plain
    except ValueError:
        fits = False
    if value and not fits:
        raise click.BadParameter(f"{value!r} is no https address; write https://10.0.0.5:9443")
    return value


WEBHOOK_FLAGS: tuple[Callable[[Any], Any], ...] = (
    _setting(
        "--webhook",
        type=click.Choice(["on", "off"]),
        default="off",
        show_default=True,
        help="Have the API server ask before it stores a job, so that mistakes are refused.",
    ),
    _setting(
        "--webhook-bind-address",
        type=BindAddress(),
        default=":9443",
        show_default=True,
        help="Serve the webhook here.",
    ),
    _setting(
        "--webhook-service",
        default="gangline-operator",
        show_default=True,
        help="Service that leads the API server to the webhook, from its port 443.",
    ),
    _setting(
        "--webhook-url",
        default="",
        callback=_checked_url,
        help="Instead of a service: https address of an operator outside of the cluster.",
    ),
    _setting(
        "--webhook-namespace",
        default="",
        help="Namespace of service and secret; the operator's own (MY_POD_NAMESPACE) by default.",
    ),
    _setting(
        "--webhook-secret",
        default="gangline-operator-webhook",
        show_default=True,
        help="Secret by which copies share a certificate; it is made and renewed.",
    ),
    _setting(
        "--webhook-configuration",
        default="gangline-operator",
        show_default=True,
        help="Name of both webhook configurations, which are written.",
    ),
    _setting(
        "--webhook-failure-policy",
        type=click.Choice(["Ignore", "Fail"], case_sensitive=False),
        default="Ignore",
        show_default=True,
        help="While no copy answers: store jobs unchecked, or refuse them.",
    ),
)


def webhook_from(
    flags: dict[str, Any], namespaces: tuple[str, ...], own_namespace: str
) -> "WebhookSettings | None":
    """Take the webhook's flags out of ``flags``; None if it is off.

    Raises:
        click.BadParameter: a value cannot be; the message names the flag.
    """
    from gangline.kube.probes import Address  # noqa: PLC0415 - not for --help
    from gangline.operator.webhook.settings import FailurePolicy, WebhookSettings  # noqa: PLC0415

    on = flags.pop("webhook") == "on"
    address: Address | None = flags.pop("webhook_bind_address")
    url = flags.pop("webhook_url")
    settings = WebhookSettings(
        url=url,
        service=flags.pop("webhook_service"),
        namespace=flags.pop("webhook_namespace") or own_namespace,
        secret=flags.pop("webhook_secret"),
        configuration=flags.pop("webhook_configuration"),
        failure_policy=FailurePolicy(flags.pop("webhook_failure_policy")),
        address=address or Address("", 0),
        namespaces=namespaces,
    )
    if not on:
        return None
    if not settings.address.port and not url:
        hint = "'--webhook-bind-address'"
        raise click.BadParameter("a service needs a port to send to", param_hint=hint)
    return settings
