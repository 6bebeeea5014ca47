"""The user's settings: precedence, error messages, switching of profiles."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from gangline.cli import main
from gangline.cli.commands.config import select_profile
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.profiles import UserSettings, parse_user_settings, resolve_cluster_settings
from gangline.cli.params.target import resolve_target

FILE = Path("/home/me/.config/gangline/config.yaml")
TEXT = """\
# mine
profile: research
namespace: team
profiles:
  research:
    kubeconfig: research.yaml
    context: lab
    namespace: vision
    submit:
      image: registry/train:2
      env: [NCCL_DEBUG=WARN, LR=0.1]
      gpus: 2
      tensorboard: true
      worker-image: registry/tf:1
  home:
    namespace: mine
"""
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u, namespace: theirs}}]
"""


def origins(
    flags: Mapping[str, str | None], environment: Mapping[str, str], profiles: UserSettings
) -> dict[str, tuple[str, str]]:
    found = resolve_cluster_settings(flags, profiles, environment)
    return {key: (setting.value, setting.origin) for key, setting in found.items()}


OF_PROFILE = {
    "kubeconfig": ("/home/me/.config/gangline/research.yaml", "profile research"),
    "context": ("lab", "profile research"),
    "namespace": ("vision", "profile research"),
}


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        pytest.param({}, {}, OF_PROFILE, id="the profile before the rest of the file"),
        pytest.param(
            {"namespace": "n"},
            {"GANGLINE_NAMESPACE": "other"},
            OF_PROFILE | {"namespace": ("n", "flag --namespace")},
            id="a flag before all",
        ),
        pytest.param(
            {},
            {"GANGLINE_NAMESPACE": "other"},
            OF_PROFILE | {"namespace": ("other", "environment GANGLINE_NAMESPACE")},
            id="the environment before the profile",
        ),
        pytest.param(
            {"profile": "research"},
            {"GANGLINE_NAMESPACE": "other", "KUBECONFIG": "/k"},
            OF_PROFILE,
            id="a profile named by a flag before the environment",
        ),
        pytest.param(
            {},
            {"KUBECONFIG": "/k"},
            {
                "kubeconfig": ("/k", "environment KUBECONFIG"),
                "namespace": ("team", f"file {FILE}"),
            },
            id="what belongs to another kubeconfig does not count",
        ),
        pytest.param(
            {},
            {"GANGLINE_PROFILE": "home"},
            {"namespace": ("mine", "profile home")},
            id="the profile of the environment before that of the file",
        ),
    ],
)
def test_each_value_comes_from_the_source_with_precedence(
    flags: dict[str, str | None], environment: dict[str, str], expected: dict[str, object]
) -> None:
    assert origins(flags, environment, parse_user_settings(TEXT, FILE)) == expected


def test_without_a_file_nothing_is_set() -> None:
    assert not origins({}, {}, UserSettings(FILE))


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("namespac: x", "namespac: unknown key; did you mean namespace?"),
        ("namespace: 7", "namespace: a text is expected, not 7"),
        ("profiles: {a: {context: [b]}}", "profiles.a.context: a text is expected, not a list"),
        ("profiles: {a: {colour: b}}", "profiles.a.colour: unknown key; known keys"),
        ("profiles: {a: b}", "profiles.a: names with values are expected, not 'b'"),
        ("submit: [a]", "submit: names with values are expected, not a list"),
        ("a: [", "line 2"),
        ("- a", "names with values are expected, not a list"),
        ("a: 1\n---\nb: 1", "several documents"),
        ("context: a\ncontext: b", "context"),
    ],
)
def test_a_mistake_names_the_key(text: str, fragment: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_user_settings(text, FILE)
    assert fragment in caught.value.message
    assert str(FILE) in caught.value.message
    assert caught.value.code == ExitCode.USAGE


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_unknown_profile_is_reported_with_origin(source: str) -> None:
    profiles = parse_user_settings(
        TEXT.replace("research", "lab") if source == "file" else TEXT, FILE
    )
    profiles = UserSettings(FILE, profiles.defaults, {}, "gone") if source == "file" else profiles
    flag = "gone" if source == "flag" else None
    environment = {"GANGLINE_PROFILE": "gone"} if source == "environment" else {}
    with pytest.raises(CommandError, match="gone") as caught:
        profiles.active_profile(flag, environment)
    assert source in caught.value.message


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's file, and no cluster of anybody else's."""
    path = tmp_path / "gangline" / "config.yaml"
    path.parent.mkdir()
    path.write_text(TEXT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "GANGLINE_HOME", "GANGLINE_CONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return path


def test_commands_use_the_profile(settings: Path) -> None:
    target = resolve_target({})
    assert target.kubeconfig == str(settings.parent / "research.yaml")
    assert (target.context, target.namespace, target.profile) == ("lab", "vision", "research")
    assert resolve_target({"profile": "home"}).namespace == "mine"


def test_config_view_shows_the_origin_of_each_value(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (settings.parent / "research.yaml").write_text(KUBECONFIG.replace("name: c,", "name: lab,"))
    assert main.run(["config", "view", "-n", "n", "-o", "json"]) == ExitCode.DONE
    found = {key: each["origin"] for key, each in json.loads(capsys.readouterr().out).items()}
    assert found["profile"] == f"file {settings}"
    assert found["namespace"] == "flag --namespace"
    assert found["context"] == found["submit.image"] == "profile research"
    assert main.run(["config", "view", "--profile", "home"]) == ExitCode.DONE
    result = capsys.readouterr()
    assert result.out.splitlines()[0].split() == ["KEY", "VALUE", "FROM"]
    assert "no cluster is configured" in result.err


def test_kubeconfig_gives_remaining_values(
    settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.write_text("")
    kubeconfig = settings.parent / "k"
    kubeconfig.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert main.run(["config", "view", "-o", "json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["kubeconfig"]["origin"] == "environment KUBECONFIG"
    assert found["namespace"] == {"value": "theirs", "origin": f"kubeconfig {kubeconfig}"}
    assert found["server"]["value"] == "http://127.0.0.1:9"


def test_config_use_changes_only_active_profile(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.chmod(0o600)
    assert main.run(["config", "use", "home"]) == ExitCode.DONE
    assert settings.read_text() == TEXT.replace("profile: research", 'profile: "home"')
    assert settings.stat().st_mode & 0o777 == 0o600
    assert main.run(["config", "list"]) == ExitCode.DONE
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[-1:]] == [
        ["*", "home"]
    ]
    assert main.run(["config", "use", "no-such-profile"]) == ExitCode.NOT_FOUND
    assert [each.name for each in settings.parent.iterdir()] == [settings.name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("profiles: {a: {}}\n", 'profile: "a"\nprofiles: {a: {}}\n'),
        ("profile: b # the other\nprofiles: {a: {}}\n", 'profile: "a"\nprofiles: {a: {}}\n'),
    ],
)
def test_the_profile_is_written_where_it_belongs(text: str, expected: str) -> None:
    assert select_profile(text, "a", FILE) == expected


def test_a_file_that_cannot_be_changed_safely_is_left_alone() -> None:
    with pytest.raises(CommandError, match="by hand"):
        select_profile("{profile: b, profiles: {a: {}}}\n", "a", FILE)


def dry(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, object]:
    """The container of what ``submit`` would create."""
    assert main.run(["submit", *args, "--name", "x", "true"]) == ExitCode.DONE
    job = next(iter(yaml.safe_load_all(capsys.readouterr().out)))
    (role,) = job["spec"]["pytorchReplicaSpecs"].values()
    container: dict[str, object] = role["template"]["spec"]["containers"][0]
    return container


def test_submit_takes_flags_from_the_profile_where_the_line_is_silent(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    container = dry(capsys, "pytorch", "--dry-run", "--env", "LR=0.2", "--env", "A=b")
    assert container["image"] == "registry/train:2"
    assert container["resources"]["limits"]["nvidia.com/gpu"] in {2, "2"}
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert (env["NCCL_DEBUG"], env["LR"], env["A"]) == ("WARN", "0.2", "b")
    container = dry(capsys, "pytorch", "--dry-run", "--image", "other:1", "--gpus", "0")
    assert container["image"] == "other:1"
    assert "nvidia.com/gpu" not in str(container)


def test_what_stands_before_the_kind_holds_for_it(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.unlink()
    assert dry(capsys, "--dry-run", "pytorch", "--image", "other:1")["image"] == "other:1"
    assert main.run(["submit", "--set", "a=b", "pytorch", "--name", "x", "true"]) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("submit", "fragment"),
    [
        ("{imag: x}", "profiles.a.submit.imag: not a flag that settings can give; did you mean"),
        ("{name: x}", "profiles.a.submit.name: not a flag"),
        ("{env: A=b}", "profiles.a.submit.env: a list of texts is expected"),
        ("{gpus: many}", "profiles.a.submit.gpus: 'many' is not a valid integer"),
        ("{tensorboard: 'yes'}", "profiles.a.submit.tensorboard: true or false is expected"),
        ("{image: true}", "profiles.a.submit.image: a text or a number is expected"),
        ("{image: [x]}", "profiles.a.submit.image: a text or a number is expected"),
    ],
)
def test_a_setting_of_submit_that_is_wrong_is_named(
    settings: Path, capsys: pytest.CaptureFixture[str], submit: str, fragment: str
) -> None:
    settings.write_text(f"profile: a\nprofiles: {{a: {{submit: {submit}}}}}\n")
    arguments = ["submit", "pytorch", "--name", "x", "--dry-run", "true"]
    assert main.run(arguments) == ExitCode.USAGE
    assert fragment in capsys.readouterr().err
