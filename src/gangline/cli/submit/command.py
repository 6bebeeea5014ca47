"""The click command of ``submit KIND``: accepts Arena's older spellings with a note.

Options come before the command to run. ``--flag=true`` and ``--flag=false`` work for flags.
``--hostNetwork true`` works too, because Arena's help showed this form, unless ``true`` is the
complete command to run.
"""

import click

from gangline.cli.arena import SWITCHES, UNUSED_SUBMIT_FLAGS, note_unused
from gangline.cli.params.command import Command

RENAMED = {
    "--workingDir": "--working-dir",
    "--dataDir": "--data-dir",
    "--syncMode": "--sync-mode",
    "--syncSource": "--sync-source",
    "--syncImage": "--sync-image",
    "--tensorboardImage": "--tensorboard-image",
    "--workerImage": "--worker-image",
    "--psImage": "--ps-image",
    "--psPort": "--ps-port",
    "--workerPort": "--worker-port",
    "--chiefPort": "--chief-port",
    "--workerCpu": "--worker-cpu",
    "--workerMemory": "--worker-memory",
    "--psCpu": "--ps-cpu",
    "--psMemory": "--ps-memory",
    "--ChiefCpu": "--chief-cpu",
    "--ChiefMemory": "--chief-memory",
    "--chiefCpu": "--chief-cpu",
    "--chiefMemory": "--chief-memory",
    "--evaluatorCpu": "--evaluator-cpu",
    "--evaluatorMemory": "--evaluator-memory",
    "--cleanTaskPolicy": "--clean-task-policy",
    "--image-pull-secrets": "--image-pull-secret",
    "--job-backoff-limit": "--retry",
    "--worker-annotation": "--annotation",
}
DRY_RUN, SCHEDULE = "--dry-run", "schedule"
DRY_RUN_SCHEDULE = "--dry-run-schedule"
"""Hidden flag that ``--dry-run=schedule`` stands for: ``--dry-run`` itself takes no value."""
QUEUE = "--queue"
_BOOLEANS = {"true": True, "false": False}
_FLAGS_WITH_VALUE = frozenset(("--hostNetwork", "--hostIPC", "--hostPID"))


class ArenaCommand(Command):
    """A command that accepts options in Arena's forms."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Normalize the options before click parses them."""
        # Completion must not print a note: the word behind --queue is what it asks for.
        given = args if ctx.resilient_parsing else self._normalize(args)
        return super().parse_args(ctx, given)

    def _normalize(self, args: list[str]) -> list[str]:
        options = {
            name: option
            for option in self.params
            if isinstance(option, click.Option)
            for name in (*option.opts, *option.secondary_opts)
        }
        done: list[str] = []
        rest = list(args)
        while rest and rest[0].startswith("-") and rest[0] not in {"-", "--"}:
            name, equals, value = rest.pop(0).partition("=")
            if (name, value) == (DRY_RUN, SCHEDULE):
                done.append(DRY_RUN_SCHEDULE)
                continue
            # Without a name behind it, it is Arena's switch: the last word is the command.
            is_switch = len(rest) <= 1 or rest[0].startswith("-")
            if name == QUEUE and not equals and is_switch:
                click.echo(
                    "Note: --queue has no name: the job goes to the default queue.", err=True
                )
                continue
            if name in UNUSED_SUBMIT_FLAGS and name not in options:
                click.echo(note_unused(name, UNUSED_SUBMIT_FLAGS[name]), err=True)
                del rest[: int(bool(rest) and not equals and name not in SWITCHES)]
                continue
            name = _current_name(name, options)
            option = options.get(name)
            if option is None or not (option.is_flag or option.count):
                done.append(f"{name}{equals}{value}")
                # Its value is the next word, unless attached to a short name as in ``-eA=1``.
                is_whole = name.startswith("--") or len(name) == 2
                takes_next = option is not None and not equals and is_whole
                done += [rest.pop(0)] if takes_next and rest else []
            elif _is_switched_on(name, equals, value, rest):
                done.append(name if not equals or value.lower() in _BOOLEANS else f"{name}={value}")
        return done + rest


def _current_name(name: str, options: dict[str, click.Option]) -> str:
    new = RENAMED.get(name)
    if new is None or new not in options or name in options:
        return name
    click.echo(f"Note: {name} is deprecated; write {new}.", err=True)
    return new


def _is_switched_on(name: str, equals: str, value: str, rest: list[str]) -> bool:
    """Return whether a flag is switched on; remove a separate value behind it."""
    if equals:
        return _BOOLEANS.get(value.lower(), True)
    if name in _FLAGS_WITH_VALUE and len(rest) > 1 and rest[0] in _BOOLEANS:
        word = rest.pop(0)
        click.echo(f"Note: write {name}={word} with '='; it was read as the flag.", err=True)
        return _BOOLEANS[word]
    return True
