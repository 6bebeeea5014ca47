"""``config``: the user's settings, the origin of each value, and the active profile."""

import os
import re
from pathlib import Path
from typing import Any

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params import completers
from gangline.cli.params.command import group
from gangline.cli.params.options import output_option, target_flags
from gangline.cli.params.profiles import (
    CLUSTER_KEYS,
    Setting,
    UserSettings,
    parse_user_settings,
    read_user_settings,
    resolve_cluster_settings,
    settings_path,
)
from gangline.cli.render.output import format_table, print_result, print_status

_PROFILE_LINE = re.compile(r"^profile[ \t]*:.*$", re.MULTILINE)


@group(
    "config",
    examples="""
        gangline config view
        gangline config use production
    """,
)
def config_command() -> None:
    """Show your settings and profiles, and switch between profiles.

    The settings are in ~/.config/gangline/config.yaml, or in the file that GANGLINE_CONFIG names.
    """


@config_command.command(
    "view",
    examples="""
        gangline config view
        gangline config view --profile production -o yaml
    """,
)
@target_flags
@output_option("table", "json", "yaml")
def view(output: str, **flags: str | None) -> None:
    """Show each effective value and its origin.

    Flags work as in other commands: the values shown are those that would be effective there.
    """
    profiles = read_user_settings()
    settings = _effective_settings(flags, profiles)
    data = {
        key: {"value": setting.value, "origin": setting.origin} for key, setting in settings.items()
    }
    if not print_result(data, output):
        rows = [
            (key, _format_value(setting.value), setting.origin) for key, setting in settings.items()
        ]
        click.echo(format_table(["KEY", "VALUE", "FROM"], rows))


def _effective_settings(flags: dict[str, str | None], profiles: UserSettings) -> dict[str, Setting]:
    """Return all effective values: those of the settings, then those of the kubeconfig."""
    from gangline.cli.commands.submit import kind_commands
    from gangline.cli.submit.user_settings import check_settings

    profile = profiles.active_profile(flags.get("profile"), os.environ)
    given = resolve_cluster_settings(flags, profiles, os.environ)
    resolved = given | _kubeconfig_settings(given)
    effective = {"profile": profile}
    effective |= {key: resolved[key] for key in (*CLUSTER_KEYS, "server") if key in resolved}
    settings = check_settings(profiles, profile.value, kind_commands)
    return effective | {f"submit.{flag}": setting for flag, setting in settings.items()}


def _kubeconfig_settings(given: dict[str, Setting]) -> dict[str, Setting]:
    """Return the values that only the kubeconfig gives; none without a kubeconfig."""
    from gangline.cli.params.target import ClusterTarget
    from gangline.kube.errors import ConfigError

    path, context = given.get("kubeconfig"), given.get("context")
    named = path.value if path and not path.origin.startswith("environment") else None
    try:
        config = ClusterTarget(named, context.value if context else None).config()
    except ConfigError as error:
        print_status(f"Note: {error}")
        return {"namespace": Setting("default", "default")} if "namespace" not in given else {}
    origin = f"kubeconfig {config.origin}"
    settings = {
        "kubeconfig": Setting(config.origin, "default"),
        "context": Setting(config.context, origin),
        "namespace": Setting(config.namespace, origin),
        "server": Setting(config.server, origin),
    }
    return {key: setting for key, setting in settings.items() if key not in given and setting.value}


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@config_command.command("list", examples="gangline config list")
@output_option("table", "json", "yaml", "name")
def list_profiles(output: str) -> None:
    """Show the profiles; the active profile is marked."""
    profiles = read_user_settings()
    used = profiles.active_profile(None, os.environ).value
    data = [
        {"name": name, "inUse": name == used, **section.cluster}
        for name, section in profiles.profiles.items()
    ]
    if output == "name":
        for name in profiles.profiles:
            click.echo(name)
    elif not print_result(data, output):
        rows = [
            ("*" if profile["inUse"] else " ", profile["name"], *map(profile.get, CLUSTER_KEYS))
            for profile in data
        ]
        click.echo(format_table(["IN USE", "NAME", *map(str.upper, CLUSTER_KEYS)], rows))
        if not rows:
            print_status(f"No profiles: add some to {profiles.path}, below 'profiles:'.")


@config_command.command("use", examples="gangline config use production")
@click.argument("profile", shell_complete=completers.profiles)
def use(profile: str) -> None:
    """Make PROFILE the active profile."""
    path = settings_path(os.environ)
    profiles = read_user_settings()
    if profile not in profiles.profiles:
        names = ", ".join(sorted(profiles.profiles)) or "none"
        raise CommandError(f"no profile {profile!r}; {path} has {names}", code=ExitCode.NOT_FOUND)
    _write(path, select_profile(path.read_text(encoding="utf-8"), profile, path))
    click.echo(f"profile {profile} is in use")
    if (named := profiles.active_profile(None, os.environ)).origin.startswith("environment"):
        print_status(f"Note: {named.origin} selects {named.value} and takes precedence.")


def select_profile(text: str, profile: str, path: Path) -> str:
    """Return the text of the file with another active profile; everything else, and comments, stay.

    Raises:
        CommandError: the form of the file does not allow the change.
    """
    from json import dumps

    line = f"profile: {dumps(profile, ensure_ascii=False)}"
    changed, count = _PROFILE_LINE.subn(lambda _: line, text, count=1)
    if not count:
        changed = f"{line}\n{text}"
    try:
        understood = parse_user_settings(changed, path).selected == profile
    except CommandError:
        understood = False
    if not understood:
        raise CommandError(f"{path}: add the line '{line}' by hand", code=ExitCode.USAGE)
    return changed


def _write(path: Path, text: str) -> None:
    """Replace the file in one step; if it is a link, replace the file it points to."""
    place = path.resolve()
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(place.stat().st_mode & 0o777)
    fresh.replace(place)
