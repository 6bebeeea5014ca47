"""The flags of ``gangline operator`` for its admission webhook."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from gangline.cli.setting import BindAddress, env_option

if TYPE_CHECKING:
    from gangline.operator.webhook.settings import WebhookSettings

_webhook_option = partial(env_option, "GANGLINE_OPERATOR")


def _check_url(_: click.Context, __: click.Parameter, value: str) -> str:
    """Refuse URLs that no API server would call."""
    try:
        parts = urlsplit(value)
        plain = not (parts.query or parts.fragment or parts.username or parts.password)
        parts.port  # noqa: B018 - raises ValueError for an invalid port
        fits = parts.scheme == "https" and parts.hostname and plain
    except ValueError:
        fits = False
    if value and not fits:
        raise click.BadParameter(f"{value!r} is not an https URL; write https://10.0.0.5:9443")
    return value


WEBHOOK_FLAGS: tuple[Callable[[Any], Any], ...] = (
    _webhook_option(
        "--webhook",
        type=click.Choice(["on", "off"]),
        default="off",
        show_default=True,
        help="Serve an admission webhook that refuses invalid jobs.",
    ),
    _webhook_option(
        "--webhook-bind-address",
        type=BindAddress(),
        default=":9443",
        show_default=True,
        help="Address of the webhook server.",
    ),
    _webhook_option(
        "--webhook-service",
        default="gangline-operator",
        show_default=True,
        help="Service of the webhook, with port 443.",
    ),
    _webhook_option(
        "--webhook-url",
        default="",
        callback=_check_url,
        help="Instead of a service: https URL of an operator outside the cluster.",
    ),
    _webhook_option(
        "--webhook-namespace",
        default="",
        help="Namespace of service and secret; default: the operator's own (MY_POD_NAMESPACE).",
    ),
    _webhook_option(
        "--webhook-secret",
        default="gangline-operator-webhook",
        show_default=True,
        help="Secret with the certificate that replicas share; it is created and renewed.",
    ),
    _webhook_option(
        "--webhook-configuration",
        default="gangline-operator",
        show_default=True,
        help="Name of both webhook configurations, which are created.",
    ),
    _webhook_option(
        "--webhook-failure-policy",
        type=click.Choice(["Ignore", "Fail"], case_sensitive=False),
        default="Ignore",
        show_default=True,
        help="While no replica answers: accept jobs unchecked, or refuse them.",
    ),
)


def build_webhook_settings(
    flags: dict[str, Any], namespaces: tuple[str, ...], own_namespace: str
) -> "WebhookSettings | None":
    """Remove the webhook's flags from ``flags`` and build its settings; None if it is off.

    Raises:
        click.BadParameter: a value is invalid; the message names the flag.
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
        raise click.BadParameter("a service requires a port", param_hint=hint)
    return settings
