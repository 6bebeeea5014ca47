"""The flags of the operator's webhook and the resulting settings."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from gangline.cli.commands.operator import (
    build_operator_settings,
    build_webhook_settings,
    operator_flags,
)
from gangline.kube.probes import Address
from gangline.operator.webhook.settings import FailurePolicy, WebhookSettings

USUAL: dict[str, Any] = {
    "webhook": "on",
    "webhook_bind_address": Address("", 9443),
    "webhook_service": "gangline-operator",
    "webhook_url": "",
    "webhook_namespace": "",
    "webhook_secret": "gangline-operator-webhook",
    "webhook_configuration": "gangline-operator",
    "webhook_failure_policy": "Ignore",
    "webhook_queue_access": "off",
}


def chosen(**flags: Any) -> WebhookSettings | None:
    return build_webhook_settings(USUAL | flags, (), "own")


def parsed(*arguments: str, **environment: str) -> tuple[WebhookSettings | None, str]:
    """What a command line of the operator comes to, and what it says."""
    found: list[WebhookSettings | None] = []

    @click.command()
    @operator_flags
    def command(kube_api_qps: float, kube_api_burst: int | None, **flags: Any) -> None:
        found.append(build_operator_settings(flags).webhook)

    result = CliRunner().invoke(command, arguments, env=environment)
    return (found[0] if found else None), result.output


def test_webhook_is_off_by_default() -> None:
    assert parsed() == (None, "")


def test_it_is_turned_on_by_flag_or_environment() -> None:
    by_flag, _ = parsed("--webhook", "on", "--webhook-failure-policy", "fail")
    by_variables, _ = parsed(
        GANGLINE_OPERATOR_WEBHOOK="on", GANGLINE_OPERATOR_WEBHOOK_FAILURE_POLICY="Fail"
    )
    assert by_flag is not None
    assert by_flag.failure_policy is FailurePolicy.FAIL
    assert by_flag == by_variables


def test_service_and_secret_lie_beside_the_operator() -> None:
    settings, _ = parsed("--webhook=on", MY_POD_NAMESPACE="training")
    assert settings is not None
    assert settings.names == {
        "gangline-operator.training",
        "gangline-operator.training.svc",
        "gangline-operator.training.svc.cluster.local",
    }


def test_webhook_covers_operator_namespaces() -> None:
    settings, _ = parsed("--webhook=on", "-n", "a,b")
    assert settings is not None
    assert settings.namespaces == ("a", "b")


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("https://10.0.0.5:9443", {"10.0.0.5"}),
        ("https://[fd00:0:0::1]/x", {"fd00::1"}),
        ("https://operator.example.com", {"operator.example.com"}),
    ],
)
def test_a_certificate_is_good_for_the_address(url: str, names: set[str]) -> None:
    settings = chosen(webhook_url=url)
    assert settings is not None
    assert settings.names == names


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.5",
        "10.0.0.5:9443",
        "https://",
        "https://[::1",
        "https://h:99999",
        "https://h?x=1",
        "https://me:secret@h",
    ],
)
def test_an_address_that_no_api_server_calls_is_refused_by_name(url: str) -> None:
    _, fragment = parsed("--webhook=on", "--webhook-url", url)
    assert "--webhook-url" in fragment
    assert "https" in fragment


def test_a_service_cannot_send_to_a_port_that_is_not_known() -> None:
    _, fragment = parsed("--webhook=on", "--webhook-bind-address", ":0")
    assert "--webhook-bind-address" in fragment
    settings, _ = parsed(
        "--webhook=on", "--webhook-bind-address", "127.0.0.1:0", "--webhook-url", "https://h:1"
    )
    assert settings is not None


def test_queue_access_requires_the_webhook() -> None:
    settings = chosen(webhook_queue_access="on")
    assert settings is not None
    assert settings.queue_access
    with pytest.raises(click.BadParameter, match="requires --webhook on"):
        chosen(webhook_queue_access="on", webhook="off")
