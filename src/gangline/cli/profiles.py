"""The user's own settings: a file with profiles, and where each value in force comes from.

    profile: research                 # the one in use, unless --profile or GANGLINE_PROFILE says so
    namespace: team                   # these hold in every profile that does not say otherwise
    profiles:
      research:
        kubeconfig: research.yaml     # relative to this file
        context: lab
        namespace: vision
        submit:                       # what flags of 'submit KIND' are when they are not given
          image: registry.example.org/train:2
          env: [NCCL_DEBUG=WARN]

A flag counts more than the environment, that more than the profile, that more than the rest of the
file. A profile that is named by a flag counts more than the environment. ``context`` and
``namespace`` belong to the ``kubeconfig`` beside them: they do not count where that one does not.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangline.cli.errors import CommandError
from gangline.cli.exit_codes import ExitCode

CLUSTER_KEYS = ("kubeconfig", "context", "namespace")
SUBMIT = "submit"
PROFILE_VARIABLE = "GANGLINE_PROFILE"
FILE_VARIABLE = "GANGLINE_CONFIG"
VARIABLES = {
    "kubeconfig": "KUBECONFIG",
    "context": "GANGLINE_CONTEXT",
    "namespace": "GANGLINE_NAMESPACE",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it comes from."""

    value: Any
    origin: str
    key: str = ""
    """Where in the file it stands, such as ``profiles.research.submit.image``."""


@dataclass(frozen=True, slots=True)
class Section:
    """A profile, or the part of the file outside of all profiles."""

    where: str = ""
    """Its place in the file, such as ``profiles.research``; empty for the part outside."""
    cluster: Mapping[str, str] = field(default_factory=dict)
    submit: Mapping[str, Any] = field(default_factory=dict)
    """By the names of flags, without hyphens before them."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """The content of the file; of one that is not there: nothing."""

    path: Path
    rest: Section = field(default_factory=Section)
    profiles: Mapping[str, Section] = field(default_factory=dict)
    chosen: str = ""
    """The profile that the file says is in use."""

    def in_use(self, flag: str | None, environment: Mapping[str, str]) -> Setting:
        """Return the name of the profile in use, empty if none is.

        Raises:
            CommandError: there is no such profile.
        """
        named = [
            Setting(flag, "flag --profile"),
            Setting(environment.get(PROFILE_VARIABLE), f"environment {PROFILE_VARIABLE}"),
            Setting(self.chosen, f"file {self.path}"),
        ]
        found = next((each for each in named if each.value), Setting("", "default"))
        if found.value and found.value not in self.profiles:
            raise CommandError(
                f"{found.origin}: there is no profile {found.value!r}; {self._known()}",
                hint="'gangline config list' shows them.",
                code=ExitCode.USAGE,
            )
        return found

    def _known(self) -> str:
        names = ", ".join(sorted(self.profiles)) or "none"
        return f"{self.path} has {names}"

    def sections(self, profile: str) -> list[tuple[Section, str]]:
        """Return what counts of the file, the strongest first, each with its origin in words."""
        found = [(self.profiles[profile], f"profile {profile}")] if profile else []
        return [*found, (self.rest, f"file {self.path}")]


def path_of_file(environment: Mapping[str, str]) -> Path:
    """Return where the file is, or would be."""
    if named := environment.get(FILE_VARIABLE):
        return Path(named).expanduser()
    home = Path(environment.get("HOME") or Path.home())
    folder = environment.get("XDG_CONFIG_HOME") or home / ".config"
    return Path(folder, "gangline", "config.yaml")


def read_profiles(environment: Mapping[str, str] = os.environ) -> Profiles:
    """Read the file.

    Raises:
        CommandError: it cannot be read, or says what nobody understands; names the key.
    """
    path = path_of_file(environment)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Profiles(path)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}", code=ExitCode.USAGE) from error
    return parse(text, path)


def parse(text: str, path: Path) -> Profiles:
    """Read the text of the file.

    Raises:
        CommandError: as ``read_profiles``.
    """
    from gangline.api.yamltext import BadYaml, documents  # noqa: PLC0415

    try:
        found = documents(text)
    except BadYaml as error:
        raise CommandError(f"{path}: {error}", code=ExitCode.USAGE) from error
    if len(found) > 1:
        raise CommandError(f"{path} holds several documents: write one", code=ExitCode.USAGE)
    content = _mapping(found[0] if found else {}, path, "")
    _refuse_unknown(content, (*CLUSTER_KEYS, SUBMIT, "profile", "profiles"), path, "")
    profiles = {
        name: _section(_mapping(each, path, f"profiles.{name}"), path, f"profiles.{name}")
        for name, each in _mapping(content.get("profiles") or {}, path, "profiles").items()
    }
    rest = {key: value for key, value in content.items() if key not in {"profile", "profiles"}}
    chosen = _text(content.get("profile") or "", path, "profile")
    return Profiles(path, _section(rest, path, ""), profiles, chosen)


def _section(content: Mapping[str, Any], path: Path, where: str) -> Section:
    _refuse_unknown(content, (*CLUSTER_KEYS, SUBMIT), path, where)
    cluster = {
        key: _text(content[key], path, _below(where, key)) for key in CLUSTER_KEYS if key in content
    }
    if "kubeconfig" in cluster:
        cluster["kubeconfig"] = str(path.parent / Path(cluster["kubeconfig"]).expanduser())
    flags = _mapping(content.get(SUBMIT) or {}, path, _below(where, SUBMIT))
    return Section(where, cluster, {key.removeprefix("--"): flags[key] for key in flags})


def _below(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _mapping(value: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(path, where, f"names with values are expected, not {_kind(value)}")
    return {str(key): each for key, each in value.items()}


def _text(value: Any, path: Path, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, where, f"a text is expected, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return "names with values" if isinstance(value, dict) else repr(value)


def _refuse_unknown(
    content: Mapping[str, Any], known: Iterable[str], path: Path, where: str
) -> None:
    for key in content:
        if key not in known:
            from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

            near = get_close_matches(key, list(known), n=1)
            advice = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise _wrong(path, _below(where, key), f"there is no such key; {advice}")


def _wrong(path: Path, where: str, problem: str) -> CommandError:
    at = f"{path}: {where}" if where else str(path)
    return CommandError(f"{at}: {problem}", code=ExitCode.USAGE)


def cluster_settings(
    flags: Mapping[str, str | None], profiles: Profiles, environment: Mapping[str, str]
) -> dict[str, Setting]:
    """Return which cluster is meant and why; what nobody has said is left out.

    Args:
        flags: what was given of ``--kubeconfig``, ``--context``, ``--namespace``, ``--profile``.
        profiles: the file.
        environment: the environment.

    Raises:
        CommandError: the profile does not exist.
    """
    found: dict[str, Setting] = {}
    for layer in _layers(flags, profiles, environment):
        if "kubeconfig" in layer and "kubeconfig" in found:
            continue  # its context and namespace are those of another cluster
        for key, setting in layer.items():
            found.setdefault(key, setting)
    return found


def _layers(
    flags: Mapping[str, str | None], profiles: Profiles, environment: Mapping[str, str]
) -> Iterator[dict[str, Setting]]:
    """Yield what each source says, the strongest first."""
    profile = profiles.in_use(flags.get("profile"), environment)
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


def submit_settings(profiles: Profiles, profile: str) -> dict[str, Setting]:
    """Return what flags of ``submit`` are where they are not given."""
    found: dict[str, Setting] = {}
    for section, origin in profiles.sections(profile):
        for key, value in section.submit.items():
            place = _below(_below(section.where, SUBMIT), key)
            found.setdefault(key, Setting(value, origin, place))
    return found
