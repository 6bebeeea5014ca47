"""The user's settings: a file with profiles, and the origin of each effective value.

    profile: research                 # active, unless --profile or GANGLINE_PROFILE is set
    namespace: team                   # defaults for profiles without these keys
    profiles:
      research:
        kubeconfig: research.yaml     # relative to this file
        context: lab
        namespace: vision
        submit:                       # defaults for flags of 'submit KIND'
          image: registry.example.org/train:2
          env: [NCCL_DEBUG=WARN]

Precedence: flags, environment, profile, rest of the file. A profile that a flag selects precedes
the environment. ``context`` and ``namespace`` belong to the ``kubeconfig`` of the same source: they
are ignored if another source gives the kubeconfig.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gangline.cli.errors import CommandError, ExitCode

CLUSTER_KEYS = ("kubeconfig", "context", "namespace")
SUBMIT = "submit"
PROFILE_VARIABLE = "GANGLINE_PROFILE"
FILE_VARIABLE = "GANGLINE_CONFIG"
VARIABLES = {
    "kubeconfig": "KUBECONFIG",
    "context": "GANGLINE_CONTEXT",
    "namespace": "GANGLINE_NAMESPACE",
}
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Setting(NamedTuple):
    """A value and its origin."""

    value: Any
    origin: str
    key: str = ""
    """Path of the value in the file, such as ``profiles.research.submit.image``."""


class ProfileSection(NamedTuple):
    """A profile, or the part of the file outside all profiles."""

    where: str = ""
    """Path in the file, such as ``profiles.research``; empty for the part outside."""
    cluster: Mapping[str, str] = _NOTHING
    submit: Mapping[str, Any] = _NOTHING
    """Values by name of the flag, without leading hyphens."""


class UserSettings(NamedTuple):
    """Content of the file; empty if the file does not exist."""

    path: Path
    defaults: ProfileSection = ProfileSection()
    profiles: Mapping[str, ProfileSection] = _NOTHING
    selected: str = ""
    """The profile that the file selects."""

    def active_profile(self, flag: str | None, environment: Mapping[str, str]) -> Setting:
        """Return the name of the active profile; empty if none is active.

        Raises:
            CommandError: the profile does not exist.
        """
        named = [
            Setting(flag, "flag --profile"),
            Setting(environment.get(PROFILE_VARIABLE), f"environment {PROFILE_VARIABLE}"),
            Setting(self.selected, f"file {self.path}"),
        ]
        selected = next((setting for setting in named if setting.value), Setting("", "default"))
        if selected.value and selected.value not in self.profiles:
            raise CommandError(
                f"{selected.origin}: no profile {selected.value!r}; {self._known()}",
                hint="'gangline config list' shows them.",
                code=ExitCode.USAGE,
            )
        return selected

    def _known(self) -> str:
        names = ", ".join(sorted(self.profiles)) or "none"
        return f"{self.path} has {names}"

    def sections(self, profile: str) -> list[tuple[ProfileSection, str]]:
        """Return the sections that apply, in order of precedence, each with its origin."""
        layers = [(self.profiles[profile], f"profile {profile}")] if profile else []
        return [*layers, (self.defaults, f"file {self.path}")]


def settings_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the file, whether it exists or not."""
    if named := environment.get(FILE_VARIABLE):
        return Path(named).expanduser()
    home = Path(environment.get("HOME") or Path.home())
    folder = environment.get("XDG_CONFIG_HOME") or home / ".config"
    return Path(folder, "gangline", "config.yaml")


def read_user_settings(environment: Mapping[str, str] = os.environ) -> UserSettings:
    """Read the file.

    Raises:
        CommandError: the file cannot be read, or has an invalid key or value; names the key.
    """
    path = settings_path(environment)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return UserSettings(path)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}", code=ExitCode.USAGE) from error
    return parse_user_settings(text, path)


def parse_user_settings(text: str, path: Path) -> UserSettings:
    """Parse the text of the file.

    Raises:
        CommandError: as ``read_user_settings``.
    """
    from gangline.api.yaml_text import InvalidYamlError, load_yaml_documents

    try:
        documents = load_yaml_documents(text)
    except InvalidYamlError as error:
        raise CommandError(f"{path}: {error}", code=ExitCode.USAGE) from error
    if len(documents) > 1:
        raise CommandError(f"{path} has several documents: write one", code=ExitCode.USAGE)
    content = _mapping(documents[0] if documents else {}, path, "")
    _refuse_unknown(content, (*CLUSTER_KEYS, SUBMIT, "profile", "profiles"), path, "")
    profiles = {
        name: _section(_mapping(section, path, f"profiles.{name}"), path, f"profiles.{name}")
        for name, section in _mapping(content.get("profiles") or {}, path, "profiles").items()
    }
    rest = {key: value for key, value in content.items() if key not in {"profile", "profiles"}}
    chosen = _text(content.get("profile") or "", path, "profile")
    return UserSettings(path, _section(rest, path, ""), profiles, chosen)


def _section(content: Mapping[str, Any], path: Path, where: str) -> ProfileSection:
    _refuse_unknown(content, (*CLUSTER_KEYS, SUBMIT), path, where)
    cluster = {
        key: _text(content[key], path, _join_path(where, key))
        for key in CLUSTER_KEYS
        if key in content
    }
    if "kubeconfig" in cluster:
        cluster["kubeconfig"] = str(path.parent / Path(cluster["kubeconfig"]).expanduser())
    flags = _mapping(content.get(SUBMIT) or {}, path, _join_path(where, SUBMIT))
    return ProfileSection(where, cluster, {key.removeprefix("--"): flags[key] for key in flags})


def _join_path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _mapping(value: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _settings_error(path, where, f"names with values are expected, not {_kind(value)}")
    return {str(key): item for key, item in value.items()}


def _text(value: Any, path: Path, where: str) -> str:
    if not isinstance(value, str):
        raise _settings_error(path, where, f"a text is expected, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return "names with values" if isinstance(value, dict) else repr(value)


def _refuse_unknown(
    content: Mapping[str, Any], allowed: Iterable[str], path: Path, where: str
) -> None:
    for key in content:
        if key not in allowed:
            from difflib import get_close_matches

            near = get_close_matches(key, list(allowed), n=1)
            advice = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(allowed)}"
            raise _settings_error(path, _join_path(where, key), f"unknown key; {advice}")


def _settings_error(path: Path, where: str, problem: str) -> CommandError:
    at = f"{path}: {where}" if where else str(path)
    return CommandError(f"{at}: {problem}", code=ExitCode.USAGE)


def resolve_cluster_settings(
    flags: Mapping[str, str | None], profiles: UserSettings, environment: Mapping[str, str]
) -> dict[str, Setting]:
    """Return kubeconfig, context and namespace with their origins; values that no source gives are
    absent.

    Args:
        flags: values of ``--kubeconfig``, ``--context``, ``--namespace``, ``--profile``.
        profiles: the file.
        environment: the environment.

    Raises:
        CommandError: the profile does not exist.
    """
    settings: dict[str, Setting] = {}
    for layer in _layers(flags, profiles, environment):
        if "kubeconfig" in layer and "kubeconfig" in settings:
            continue  # its context and namespace belong to another cluster
        for key, setting in layer.items():
            settings.setdefault(key, setting)
    return settings


def _layers(
    flags: Mapping[str, str | None], profiles: UserSettings, environment: Mapping[str, str]
) -> Iterator[dict[str, Setting]]:
    """Yield the values of each source, in order of precedence."""
    profile = profiles.active_profile(flags.get("profile"), environment)
    sections = [
        {key: Setting(value, origin) for key, value in section.cluster.items()}
        for section, origin in profiles.sections(profile.value)
    ]
    for key in CLUSTER_KEYS:
        if value := flags.get(key):
            yield {key: Setting(value, f"flag --{key}")}
    if flags.get("profile"):
        yield sections.pop(0)
    for key, variable in VARIABLES.items():
        if value := environment.get(variable):
            yield {key: Setting(value, f"environment {variable}")}
    yield from sections


def resolve_submit_settings(profiles: UserSettings, profile: str) -> dict[str, Setting]:
    """Return the defaults for flags of ``submit``."""
    settings: dict[str, Setting] = {}
    for section, origin in profiles.sections(profile):
        for key, value in section.submit.items():
            place = _join_path(_join_path(section.where, SUBMIT), key)
            settings.setdefault(key, Setting(value, origin, place))
    return settings
