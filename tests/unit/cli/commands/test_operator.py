"""The settings that flags and variables of the operator and the Brain become."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from gangline.cli.commands.brain import brain_command, build_brain_settings
from gangline.cli.commands.operator import (
    build_operator_settings,
    build_rate_limit,
    operator_flags,
    resolve_gang_scheduling,
)
from gangline.kube.controller.leader_election import LeaderElectionTiming
from gangline.kube.probes import Address
from gangline.operator.settings import GangScheduling, OperatorSettings
from gangline.operator.webhook.settings import FailurePolicy, WebhookSettings

OUTSIDE = {"KUBERNETES_SERVICE_HOST": None, "KUBEFLOW_NAMESPACE": None, "MY_POD_NAMESPACE": None}


def read(*arguments: str, **environment: str) -> tuple[OperatorSettings, Any]:
    """The settings, and the flags for the client."""
    found: list[Any] = []

    @click.command()
    @operator_flags
    def command(kube_api_qps: float, kube_api_burst: int | None, **flags: Any) -> None:
        found.append(
            (build_operator_settings(flags), build_rate_limit(kube_api_qps, kube_api_burst))
        )

    result = CliRunner().invoke(command, arguments, env=OUTSIDE | environment)
    if result.exit_code:
        raise ValueError(result.output)
    settings, limit = found[0]
    return settings, limit


def settings(*arguments: str, **environment: str) -> OperatorSettings:
    return read(*arguments, **environment)[0]


def test_without_flags_the_settings_are_the_usual_ones() -> None:
    usual = OperatorSettings()
    found, limit = read()
    names = [name for name in OperatorSettings.__slots__ if name != "identity"]
    assert {name: getattr(found, name) for name in names} == {
        name: getattr(usual, name) for name in names
    }
    assert limit is None


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--namespace", "a", "-n", "b"], "namespaces", ("a", "b")),
        (["--namespace=a,b"], "namespaces", ("a", "b")),
        (["--namespace="], "namespaces", ()),
        (["--enable-scheme=pytorchjob"], "kinds", {"PyTorchJob"}),
        (["--enable-scheme", "TFJOB", "--kind", "MSJob"], "kinds", {"TFJob", "MSJob"}),
        (["--controller-threads=4"], "workers", 4),
        (["--workers=4"], "workers", 4),
        (["--resync-period=12h30m"], "resync_s", 45_000.0),
        (["--resync-period=0"], "resync_s", None),
        (["--resync-period", "250ms"], "resync_s", 0.25),
        (["--leader-elect"], "leader_election", True),
        (["--leader-elect=true"], "leader_election", True),
        (["--leader-elect=false"], "leader_election", False),
        (["--leader-election-id=x.y"], "leader_election_name", "x.y"),
        (["--leader-election-namespace=ops"], "leader_election_namespace", "ops"),
        (
            ["--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=40s"],
            "leader_election_timing",
            LeaderElectionTiming(60, 40.0, 2.0),
        ),
        (["--metrics-bind-address=:8080"], "metrics_address", Address("", 8080)),
        (["--metrics-bind-address=0"], "metrics_address", None),
        (["--metrics-bind-address=[::1]:9"], "metrics_address", Address("::1", 9)),
        (["--health-probe-bind-address=10.0.0.1:0"], "health_address", Address("10.0.0.1", 0)),
        (["--gang-scheduler-name=Volcano"], "scheduler_name", "volcano"),
        (["--scheduling=volcano"], "scheduler_name", "volcano"),
        (["--gang-scheduler-name=none"], "gang_scheduling", GangScheduling.OFF),
        (["--gang-scheduler-name="], "gang_scheduling", GangScheduling.AUTO),
        (["--enable-gang-scheduling=false"], "gang_scheduling", GangScheduling.OFF),
        (["--enable-gang-scheduling"], "gang_scheduling", GangScheduling.AUTO),
        (["--pytorch-init-container-image=busybox"], "init_image", "busybox"),
        (["--initImage=busybox"], "paddle_init_image", "busybox"),
        (["--etcd-server=etcd:2379"], "paddle_etcd_server", "etcd:2379"),
        (["--mpi-kubectl-delivery-image=kubectl"], "mpi_kubectl_image", "kubectl"),
        (["--zap-devel", "--zap-stacktrace-level=error"], "workers", 256),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_flag_becomes_a_setting(arguments: list[str], name: str, value: object) -> None:
    assert getattr(settings(*arguments), name) == value


@pytest.mark.parametrize(
    ("environment", "name", "value"),
    [
        ({"GANGLINE_OPERATOR_NAMESPACE": "a,b"}, "namespaces", ("a", "b")),
        ({"GANGLINE_OPERATOR_NAMESPACE": "a b"}, "namespaces", ("a", "b")),
        ({"KUBEFLOW_NAMESPACE": "kubeflow"}, "namespaces", ("kubeflow",)),
        (
            {"KUBEFLOW_NAMESPACE": "kubeflow", "GANGLINE_OPERATOR_NAMESPACE": "ours"},
            "namespaces",
            ("ours",),
        ),
        ({"CUSTOM_CLUSTER_DOMAIN": "cluster.local"}, "cluster_domain", "cluster.local"),
        ({"MY_POD_NAMESPACE": "ops"}, "leader_election_namespace", "ops"),
        ({"GANGLINE_OPERATOR_LEADER_ELECT": "true"}, "leader_election", True),
        ({"GANGLINE_OPERATOR_CONTROLLER_THREADS": "7"}, "workers", 7),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "metrics_address", Address("", 8080)),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "health_address", Address("", 8081)),
    ],
)
def test_a_variable_becomes_a_setting(
    environment: dict[str, str], name: str, value: object
) -> None:
    assert getattr(settings(**environment), name) == value


def test_a_flag_comes_before_a_variable() -> None:
    found = settings("--namespace=flag", GANGLINE_OPERATOR_NAMESPACE="variable")
    assert found.namespaces == ("flag",)


@pytest.mark.parametrize(
    "argument",
    [
        "--kube-api-qps=fast",
        "--kube-api-burst=0",
        "--enable-scheme=FooJob",
        "--controller-threads=0",
        "--resync-period=soon",
        "--resync-period=-1s",
        "--leader-elect=perhaps",
        "--leader-elect-renew-deadline=20s",
        "--metrics-bind-address=8080",
        "--metrics-bind-address=:99999",
        "--metrics-bind-address=::1:80",
        "--health-probe-bind-address=here",
        "--gang-scheduler-name=scheduler-plugins-scheduler",
        "--gang-scheduling=perhaps",
    ],
)
def test_invalid_value_names_its_flag(argument: str) -> None:
    flag = argument.partition("=")[0]
    with pytest.raises(ValueError, match=rf"Invalid value for .*{flag}"):
        settings(argument)


def test_invalid_value_from_environment_names_flag_and_variable() -> None:
    with pytest.raises(ValueError, match=r"--kube-api-qps.*GANGLINE_OPERATOR_KUBE_API_QPS"):
        settings(GANGLINE_OPERATOR_KUBE_API_QPS="fast")


async def test_default_burst_is_one_and_a_half_times_rate() -> None:
    def room(bucket: Any) -> int:
        taken = 0
        while bucket.try_take():
            taken += 1
        return taken

    assert build_rate_limit(0, None) is None
    assert build_rate_limit(-1, 5) is None
    assert room(build_rate_limit(0.001, None)) == 1
    assert room(build_rate_limit(0.001, 30)) == 30


def test_upstreams_scheduler_flag_keeps_gangs_off_when_they_are_off() -> None:
    assert resolve_gang_scheduling("off", "gangline", "volcano") == ("off", "volcano")


def webhook(*arguments: str, **environment: str) -> WebhookSettings:
    found = settings("--webhook=on", *arguments, **environment).webhook
    assert found is not None
    return found


def test_webhook_is_off_by_default_and_turned_on_by_flag_or_environment() -> None:
    assert settings().webhook is None
    by_flag = webhook("--webhook-failure-policy", "fail")
    assert by_flag.failure_policy is FailurePolicy.FAIL
    variables = {"WEBHOOK": "on", "WEBHOOK_FAILURE_POLICY": "Fail"}
    environment = {f"GANGLINE_OPERATOR_{name}": value for name, value in variables.items()}
    assert settings(**environment).webhook == by_flag


def test_service_and_secret_lie_beside_the_operator() -> None:
    name = "gangline-operator.training"
    names = {name, f"{name}.svc", f"{name}.svc.cluster.local"}
    assert webhook(MY_POD_NAMESPACE="training").names == names


def test_webhook_covers_operator_namespaces() -> None:
    assert webhook("-n", "a,b").namespaces == ("a", "b")


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("https://10.0.0.5:9443", {"10.0.0.5"}),
        ("https://[fd00:0:0::1]/x", {"fd00::1"}),
        ("https://operator.example.com", {"operator.example.com"}),
    ],
)
def test_a_certificate_is_good_for_the_address(url: str, names: set[str]) -> None:
    assert webhook("--webhook-url", url).names == names


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
    with pytest.raises(ValueError, match=r"--webhook-url.*https"):
        webhook("--webhook-url", url)


def test_a_service_cannot_send_to_a_port_that_is_not_known() -> None:
    with pytest.raises(ValueError, match="--webhook-bind-address"):
        webhook("--webhook-bind-address", ":0")
    assert webhook("--webhook-bind-address", "127.0.0.1:0", "--webhook-url", "https://h:1")


@pytest.mark.parametrize(
    "flag", ["--webhook-progress=on", "--feature-gates=A=true,TrainJobStatus=true"]
)
def test_progress_is_off_unless_a_flag_turns_it_on(flag: str) -> None:
    assert not webhook("--feature-gates=TrainJobStatus=false").progress
    assert webhook(flag).progress_url == "https://gangline-operator.kube-system.svc"
    with pytest.raises(ValueError, match="requires --webhook on"):
        settings(flag)


def test_queue_access_requires_the_webhook() -> None:
    assert webhook("--webhook-queue-access=on").queue_access
    with pytest.raises(ValueError, match="requires --webhook on"):
        settings("--webhook-queue-access=on")


def flags(*arguments: str) -> dict[str, object]:
    values = brain_command.make_context("brain", ["--database=sqlite://", *arguments]).params
    return {name: value for name, value in values.items() if name not in ("target", "debug")}


def test_timing_of_the_election_is_set_as_that_of_the_operator() -> None:
    given = flags("--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s")
    settings = build_brain_settings(given)
    assert settings.leader_election_timing == LeaderElectionTiming(4, 3.0, 2.0)
    assert build_brain_settings(flags()).leader_election_timing == LeaderElectionTiming()


def test_timing_with_which_two_could_lead_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="two replicas could lead"):
        build_brain_settings(flags("--leader-elect-lease-duration=5s"))
