"""Parses flags of a command line and of ``PET_*`` variables."""

import argparse
from collections.abc import Mapping, Sequence

from gangline.elastic.launcher.flags import ALL_FLAGS, Flag

ENVIRONMENT_PREFIX = "PET_"


class FlagError(Exception):
    """A flag cannot be honoured; the text names it and the reason."""


def parse_flags(
    arguments: Sequence[str], environment: Mapping[str, str], program: str
) -> argparse.Namespace:
    """Parse a command line. Every flag becomes an attribute in its ``_`` spelling.

    The attribute ``given`` holds the names of flags that were set, here or in the environment.

    Raises:
        SystemExit: it is wrong, or help is requested; argparse has printed a message.
        FlagError: an environment variable is wrong.
    """
    parser = _parser(program)
    found = parser.parse_args(arguments)
    given = set(vars(found)) - {"training_script", "training_script_args"}
    for flag in ALL_FLAGS:
        name = flag.name.replace("-", "_")
        if name in given:
            continue
        if (text := environment.get(ENVIRONMENT_PREFIX + name.upper())) is not None:
            setattr(found, name, _parse_value(flag, text))
            given.add(name)
        else:
            setattr(found, name, False if flag.is_switch else flag.default)
    found.given = frozenset(given)
    return found


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Start a training script on this node, and start it again when it fails.",
        argument_default=argparse.SUPPRESS,
    )
    for flag in ALL_FLAGS:
        names = dict.fromkeys((f"--{flag.name}", f"--{flag.name.replace('-', '_')}"))
        short = [f"-{flag.short}"] if flag.short else []
        if flag.is_switch:
            parser.add_argument(*short, *names, action="store_true", help=flag.help)
            continue
        parser.add_argument(
            *short,
            *names,
            type=flag.type,
            choices=flag.choices or None,
            help=flag.help if flag.default in (None, "", ()) else f"{flag.help} [{flag.default}]",
            metavar=None if flag.choices else flag.name.rpartition("-")[2].upper(),
        )
    parser.add_argument("training_script", help="The script, module or program.")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="Its arguments.")
    return parser


def _parse_value(flag: Flag, text: str) -> object:
    name = ENVIRONMENT_PREFIX + flag.name.replace("-", "_").upper()
    try:
        value = bool(int(text)) if flag.is_switch else flag.type(text)
    except ValueError:
        expected = "0 or 1" if flag.is_switch else "a number"
        raise FlagError(f"{name}={text}: must be {expected}") from None
    if flag.choices and value not in flag.choices:
        raise FlagError(f"{name}={text}: must be one of {', '.join(map(str, flag.choices))}")
    return value
