"""Defaults for flags of ``submit KIND`` from the user's settings.

Values of flags that may be repeated, such as ``--env``, are added to those of the command line,
which take precedence. A flag that only other kinds have is ignored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.profiles import (
    Setting,
    UserSettings,
    read_user_settings,
    resolve_submit_settings,
)

NOT_SETTABLE = frozenset(
    {
        "name",
        "dry-run",
        "dry-run-schedule",
        "profile",
        "kubeconfig",
        "config",
        "context",
        "namespace",
    }
)
"""Flags that settings cannot give: they belong to one job, or to another level of the file."""


def apply_settings(
    context: click.Context,
    options: Mapping[str, Any],
    profile: str,
    commands: Callable[[], Iterable[click.Command]],
) -> dict[str, Any]:
    """Return the options of the command line, completed with the user's settings.

    Raises:
        CommandError: a setting is not a flag, or its value is invalid; has the key.
    """
    profiles = read_user_settings()
    settings = check_settings(profiles, profile, commands)
    by_flag = dict(_flags(context.command))
    complete = dict(options)
    for flag, setting in settings.items():
        option = by_flag.get(flag)
        if option is not None and option.name is not None:
            complete[option.name] = _value(context, option, setting, complete, profiles)
    return complete


def check_settings(
    profiles: UserSettings, profile: str, commands: Callable[[], Iterable[click.Command]]
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
    settings = resolve_submit_settings(profiles, profile)
    if settings:
        settable = {flag for command in commands() for flag, _ in _flags(command)} - NOT_SETTABLE
        for flag, setting in settings.items():
            if flag not in settable:
                near = get_close_matches(flag, settable, n=1)
                advice = f"; did you mean {near[0]}?" if near else ""
                raise _wrong(profiles, setting, f"not a flag that settings can give{advice}")
    return settings


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
    profiles: UserSettings,
) -> Any:
    """Return the value of an option, from the command line and the settings."""
    name, value = str(option.name), setting.value
    given = options[name]
    if option.multiple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _wrong(profiles, setting, "a list of texts is expected, such as [a, b]")
        return (*(item for item in value if item not in given), *given)
    if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
        return given
    if option.is_flag != isinstance(value, bool):
        expected = "true or false is" if option.is_flag else "a text or a number is"
        raise _wrong(profiles, setting, f"{expected} expected, not {value!r}")
    if isinstance(value, list | dict):
        raise _wrong(profiles, setting, "a text or a number is expected")
    try:
        return option.type_cast_value(context, value if option.is_flag else str(value))
    except click.BadParameter as error:
        raise _wrong(profiles, setting, error.message) from error


def _wrong(profiles: UserSettings, setting: Setting, problem: str) -> CommandError:
    return CommandError(f"{profiles.path}: {setting.key}: {problem}", code=ExitCode.USAGE)
