"""Finding and reading configuration, and the message for each common error."""

import base64
import os
from datetime import UTC, datetime

import msgspec
import pytest
import yaml

from gangline.kube.config.config import load_config
from gangline.kube.config.credentials import ExecPlugin, TokenFile
from gangline.kube.config.embedded import RunRecord, process_start_ticks
from gangline.kube.errors import ConfigError

HEALTHY = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "main",
    "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/"}}],
    "users": [{"name": "u", "user": {"token": "secret"}}],
}


def encoded(text):
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def write(tmp_path):
    def write_file(content=HEALTHY, name="config", **changes):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            content = yaml.safe_dump({**content, **changes})
        path.write_text(content)
        return path

    return write_file


def cluster(**fields):
    return [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **fields}}]


def user(**fields):
    return [{"name": "u", "user": fields}]


async def test_a_healthy_file_is_read(write):
    config = load_config(str(write()))
    assert config.server == "https://10.0.0.1:6443"
    assert (config.namespace, config.context, config.verify) == ("team", "main", True)
    assert (await config.credentials.current()).authorization == "Bearer secret"


def test_a_secret_does_not_show_in_print(write):
    pair = {"client-key-data": encoded("KEY"), "client-certificate-data": encoded("CERT")}
    assert "KEY" not in repr(load_config(str(write(users=user(**pair)))))


def test_the_file_named_by_the_caller_comes_first(write, tmp_path):
    other = write(name="other", contexts=[{"name": "main", "context": {"cluster": "c"}}])
    environment = {"KUBECONFIG": str(write()), "HOME": str(tmp_path)}
    assert load_config(str(other), environment=environment).namespace == "default"
    assert load_config(environment=environment).namespace == "team"


def test_of_several_files_the_first_that_names_a_thing_wins(write, tmp_path):
    first = write({"contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}]}, "1/a")
    second = write(
        name="2/b",
        clusters=cluster(**{"certificate-authority": "ca.pem"}),
        contexts=[{"name": "main", "context": {"cluster": "no"}}],
    )
    (tmp_path / "2" / "ca.pem").write_text("PEM")
    files = f"{first}:{tmp_path / 'missing'}::{second}"
    config = load_config(environment={"KUBECONFIG": files})
    assert config.certificate_authority == b"PEM"
    assert config.namespace == "default"


def test_a_context_can_be_chosen(write):
    contexts = [*HEALTHY["contexts"], {"name": "other", "context": {"cluster": "c", "user": "u"}}]
    path = write(contexts=contexts)
    assert load_config(str(path), "other").context == "other"


async def test_a_pod_uses_its_service_account(tmp_path):
    (tmp_path / "token").write_text("from-the-pod\n")
    (tmp_path / "namespace").write_text("team")
    (tmp_path / "ca.crt").write_text("PEM")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    config = load_config(environment=environment, service_account=tmp_path)
    assert (config.server, config.namespace) == ("https://[fd00::1]:443", "team")
    assert config.certificate_authority == b"PEM"
    assert (await config.credentials.current()).authorization == "Bearer from-the-pod"


async def test_a_token_file_is_read_again(tmp_path):
    path, time = tmp_path / "token", 0.0
    path.write_text("one")
    source = TokenFile(path, clock=lambda: time)
    assert (await source.current()).authorization == "Bearer one"
    path.write_text("two")
    time = 59
    assert (await source.current()).authorization == "Bearer one"
    assert (await source.current(refresh=True)).authorization == "Bearer two"
    path.write_text("three")
    time = 130
    assert (await source.current()).authorization == "Bearer three"


def test_the_embedded_cluster_is_used_when_nothing_else_is_configured(write, tmp_path):
    environment = {"HOME": str(tmp_path), "GANGLINE_HOME": str(tmp_path / "gangline")}
    with pytest.raises(ConfigError, match="gangline up"):
        load_config(environment=environment)
    write(name="gangline/kubeconfig")
    assert load_config(environment=environment).namespace == "team"
    write(name=".kube/config", contexts=[{"name": "main", "context": {"cluster": "c"}}])
    assert load_config(environment=environment).namespace == "default"


def a_run(home, name, pid):
    """Write the record of a cluster and its kubeconfig, whose namespace is the cluster's name."""
    folder = home / "clusters" / name
    folder.mkdir(parents=True)
    user = {"cluster": "c", "user": "u", "namespace": name}
    written = {**HEALTHY, "contexts": [{"name": "main", "context": user}]}
    (folder / "kubeconfig").write_text(yaml.safe_dump(written))
    since = datetime(2026, 1, 1, tzinfo=UTC)
    record = RunRecord(pid, process_start_ticks(os.getpid()), "https://127.0.0.1:1", since)
    (folder / "run.json").write_bytes(msgspec.json.encode(record))


@pytest.mark.parametrize(
    ("running", "chosen"),
    [
        pytest.param(["x"], "x", id="the only one, whatever its name"),
        pytest.param([], "team", id="none: the default, whose client says that it does not run"),
        pytest.param(["default", "x"], "team", id="the default beside others"),
        pytest.param(["x", "y"], "", id="several without the default"),
    ],
)
def test_the_running_embedded_cluster_is_used(write, tmp_path, running, chosen):
    environment = {"HOME": str(tmp_path), "GANGLINE_HOME": str(tmp_path)}
    write(name="kubeconfig")
    a_run(tmp_path, "ended", pid=1)
    for name in running:
        a_run(tmp_path, name, pid=os.getpid())
    if chosen:
        assert load_config(environment=environment).namespace == chosen
        return
    with pytest.raises(ConfigError) as failed:
        load_config(environment=environment)
    assert [line for line in str(failed.value).splitlines() if line.startswith("  ")] == [
        f"  {name}: --kubeconfig {tmp_path}/clusters/{name}/kubeconfig" for name in running
    ]


def test_the_embedded_cluster_is_found_in_the_home_folder(write, tmp_path):
    write(name=".gangline/kubeconfig")
    assert load_config(environment={"HOME": str(tmp_path)}).namespace == "team"


@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        ("https://k.example.org", {}, ""),
        ("https://k.example.org", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://k.example.org", {"https_proxy": "http://p:1"}, "http://p:1"),
        ("https://k.example.org", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example.org"}, ""),
        ("https://k.example.org", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a,.example.org"}, ""),
        (
            "https://kexample.org",
            {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example.org"},
            "http://p:1",
        ),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, ""),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
    ],
)
def test_the_proxy_of_the_environment_is_used_where_it_applies(write, server, environment, proxy):
    path = write(clusters=[{"name": "c", "cluster": {"server": server}}])
    assert load_config(str(path), environment=environment).proxy_url == proxy


def test_impersonation_is_requested_in_headers(write):
    path = write(users=user(**{"as": "eve", "as-groups": ["a", "b"], "token": "t"}))
    assert load_config(str(path)).headers == (
        ("Impersonate-User", "eve"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
    )


def test_an_exec_plugin_is_configured(write, tmp_path):
    exec_ = {
        "command": "bin/login",
        "args": ["--now"],
        "env": [{"name": "A", "value": "b"}],
        "apiVersion": "client.authentication.k8s.io/v1",
        "provideClusterInfo": True,
    }
    source = load_config(str(write(users=user(exec=exec_)))).credentials
    assert isinstance(source, ExecPlugin)
    assert source.command == str(tmp_path / "bin/login")
    assert source.cluster == {"server": "https://10.0.0.1:6443/"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        pytest.param({"current-context": ""}, r"no current-context.*--context.*main", id="none"),
        pytest.param({"current-context": "x"}, r"no context 'x'.*known: main", id="unknown"),
        pytest.param({"clusters": []}, r"names the cluster 'c'.*not there", id="no cluster"),
        pytest.param({"users": None}, r"names the user 'u'.*not there", id="no user"),
        pytest.param(
            {"clusters": [{"name": "c", "cluster": {"server": "10.0.0.1"}}]},
            r"server '10.0.0.1'.*https://",
            id="no scheme",
        ),
        pytest.param(
            {"clusters": [{"name": "c", "cluster": {}}]}, r"server ''.*https://", id="no server"
        ),
        pytest.param(
            {"clusters": cluster(**{"certificate-authority-data": "%%%"})},
            r"certificate-authority-data is not base64",
            id="not base64",
        ),
        pytest.param(
            {"clusters": cluster(**{"certificate-authority": "/no/such/ca.pem"})},
            r"certificate-authority /no/such/ca.pem cannot be read: No such file",
            id="no such file",
        ),
        pytest.param(
            {"users": user(**{"client-certificate-data": encoded("x")})},
            r"client-certificate and no client-key",
            id="certificate without key",
        ),
        pytest.param(
            {"users": user(**{"client-key-data": encoded("x")})},
            r"client-key and no client-certificate",
            id="key without certificate",
        ),
        pytest.param(
            {"users": user(**{"auth-provider": {"name": "gcp"}})},
            r"auth-provider 'gcp' is no longer supported.*exec plugin",
            id="auth provider",
        ),
        pytest.param(
            {"users": user(exec={"command": "x", "apiVersion": "v1alpha1"})},
            r"exec plugin 'x' uses v1alpha1.*must be one of",
            id="exec version",
        ),
        pytest.param(
            {"users": user(exec={"apiVersion": "client.authentication.k8s.io/v1"})},
            r"no command",
            id="exec without command",
        ),
        pytest.param(
            {"clusters": [{"name": 5}]}, r"not a kubeconfig: .*\$\.clusters\[0\]\.name", id="types"
        ),
    ],
)
def test_each_usual_breakage_is_named_with_what_would_help(write, changes, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load_config(str(write(**changes)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is empty"),
        ("{a: [", "is not YAML"),
        ("just text", "is not a mapping"),
        ("- a\n- b\n", "is not a mapping"),
        ("\x00\x01", "is not YAML"),
    ],
)
def test_file_without_a_kubeconfig_is_refused(write, content, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load_config(str(write(content)))


def test_binary_kubeconfig_is_refused(tmp_path):
    path = tmp_path / "config"
    path.write_bytes(b"token: \x80\x81")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_config(str(path))


def test_missing_kubeconfig_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"does not exist.*KUBECONFIG"):
        load_config(str(tmp_path / "no"))
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(environment={"KUBECONFIG": str(tmp_path / "no")})


def test_folder_in_place_of_a_kubeconfig_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(str(tmp_path))


async def test_missing_or_empty_token_file_is_refused(write, tmp_path):
    source = load_config(str(write(users=user(tokenFile="token")))).credentials
    with pytest.raises(ConfigError, match=f"{tmp_path}/token cannot be read"):
        await source.current()
    write(" \n", "token")
    with pytest.raises(ConfigError, match="is empty"):
        await source.current()
