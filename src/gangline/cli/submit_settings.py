"""Flags of ``submit KIND`` that the user's settings give, put in where the line does not.

What may be repeated, such as ``--env``, is added to what the line says, which counts more. A flag
that only other kinds have is passed over.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource

from gangline.cli.errors import CommandError
from gangline.cli.exit_codes import ExitCode
from gangline.cli.profiles import Profiles, Setting, read_profiles, submit_settings

OWN = frozenset({"name", "dry-run", "profile", "kubeconfig", "config", "context", "namespace"})
"""Flags that are not for settings: of one job, or set one floor above."""


def filled_in(
    context: click.Context,
    options: Mapping[str, Any],
    profile: str,
    commands: Callable[[], Iterable[click.Command]],
) -> dict[str, Any]:
    """Return the options of a line with those of the user's settings.

    Raises:
        CommandError: a setting is no flag, or its value not one of that flag; names the key.
    """
    profiles = read_profiles()
    found = checked(profiles, profile, commands)
    by_flag = dict(_flags(context.command))
    complete = dict(options)
    for flag, setting in found.items():
        option = by_flag.get(flag)
        if option is not None and option.name is not None:
            complete[option.name] = _value(context, option, setting, complete, profiles)
    return complete


def checked(
    profiles: Profiles, profile: str, commands: Callable[[], Iterable[click.Command]]
) -> dict[str, Setting]:
    """Return the settings for flags of ``submit KIND``.

    Args:
        profiles: the user's settings.
        profile: the name of the profile in use, or an empty text.
        commands: returns the commands whose flags may be set; called only if there are settings,
            because building the commands is slow.

    Raises:
        CommandError: a setting is not a flag of any of the commands; the message has its key.
    """
    found = submit_settings(profiles, profile)
    if found:
        known = {flag for command in commands() for flag, _ in _flags(command)} - OWN
        for flag, setting in found.items():
            if flag not in known:
                near = get_close_matches(flag, known, n=1)
                advice = f"; did you mean {near[0]}?" if near else ""
                raise _wrong(profiles, setting, f"no job takes this from the settings{advice}")
    return found


def _flags(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """Yield the options of a command by their long names."""
    for option in command.params:
        if isinstance(option, click.Option):
            for name in option.opts:
                if name.startswith("--"):
                    yield name.removeprefix("--"), option


def _value(
    context: click.Context,
    option: click.Option,
    setting: Setting,
    options: Mapping[str, Any],
    profiles: Profiles,
) -> Any:
    """What an option is to be, of what the line and the settings say."""
    name, value = str(option.name), setting.value
    said = options[name]
    if option.multiple:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise _wrong(profiles, setting, "a list of texts is expected, such as [a, b]")
        return (*(each for each in value if each not in said), *said)
    if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
        return said
    if option.is_flag != isinstance(value, bool):
        wanted = "true or false is" if option.is_flag else "a text or a number is"
        raise _wrong(profiles, setting, f"{wanted} expected, not {value!r}")
    if isinstance(value, list | dict):
        raise _wrong(profiles, setting, "a text or a number is expected")
    try:
        return option.type_cast_value(context, value if option.is_flag else str(value))
    except click.BadParameter as error:
        raise _wrong(profiles, setting, error.message) from error


def _wrong(profiles: Profiles, setting: Setting, problem: str) -> CommandError:
    return CommandError(f"{profiles.path}: {setting.key}: {problem}", code=ExitCode.USAGE)
