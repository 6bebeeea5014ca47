"""Options that many commands share: cluster, namespace, kind of job, output format."""

from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from gangline.cli.arena import SWITCHES, UNUSED_GLOBAL_FLAGS, note_unused
from gangline.cli.params import completers
from gangline.cli.params.command import CLUSTER, section
from gangline.cli.params.target import resolve_target
from gangline.cli.render.output import print_status

if TYPE_CHECKING:
    from gangline.sdk.client import JobClient

F = TypeVar("F", bound=Callable[..., Any])


_NAMESPACE_OPTION = click.option(
    "-n",
    "--namespace",
    shell_complete=completers.namespaces,
    help="Namespace; default: that of the kubeconfig.",
)
_CLUSTER_OPTIONS = (
    click.option(
        "--kubeconfig",
        "--config",
        "kubeconfig",
        metavar="FILE",
        type=click.Path(),
        help="Kubeconfig; default: KUBECONFIG, then the usual paths.",
    ),
    click.option(
        "--context", shell_complete=completers.contexts, help="Context of the kubeconfig to use."
    ),
    click.option(
        "--profile",
        shell_complete=completers.profiles,
        help="Profile of your settings; see 'gangline config'.",
    ),
)


def cluster_options(command: F) -> F:
    """Add ``--kubeconfig``, ``--context`` and ``--profile``; the command receives a
    ``ClusterTarget`` as ``target``.
    """
    return target_flags(_with_target(command), namespace=False)


def namespace_options(command: F) -> F:
    """Add ``-n`` to the options of ``cluster_options``."""
    return target_flags(_with_target(command), namespace=True)


def _with_target(command: F) -> F:
    @wraps(command)
    def with_target(
        *args: Any,
        kubeconfig: str | None,
        context: str | None,
        profile: str | None,
        namespace: str | None = None,
        **options: Any,
    ) -> Any:
        given = {"kubeconfig": kubeconfig, "context": context, "namespace": namespace}
        given |= {"profile": profile}
        before = getattr(click.get_current_context().find_root().obj, "target", {})
        given |= {name: value for name, value in before.items() if given.get(name) is None}
        return command(*args, target=resolve_target(given), **options)

    return cast(F, with_target)


def target_flags(command: F, *, namespace: bool = True, show_debug: bool = False) -> F:
    """Add the options that select a cluster; the command receives each as its own parameter."""
    options = (*_CLUSTER_OPTIONS, *([_NAMESPACE_OPTION] if namespace else []))
    return debug_option(section(CLUSTER, *options)(command), show=show_debug)


def debug_option(command: F, *, show: bool = False) -> F:
    """Accept ``--debug`` after the name of the command, where users add it when a command has
    failed, and Arena's global flags, which may be anywhere.
    """
    for flag, reason in reversed(UNUSED_GLOBAL_FLAGS.items()):
        command = click.option(
            flag,
            is_flag=flag in SWITCHES,
            expose_value=False,
            callback=partial(_note_unused, reason),
            hidden=True,
        )(command)
    command = click.option(
        "--loglevel", expose_value=False, callback=_note_log_level, hidden=True, metavar="LEVEL"
    )(command)
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_note_debug,
        hidden=not show,
        help="Show a traceback when something goes wrong.",
    )(command)


def _note_unused(reason: str, _: click.Context, option: click.Parameter, value: object) -> None:
    if value:
        print_status(note_unused(option.opts[0], reason))


def _note_log_level(context: click.Context, option: click.Parameter, value: str | None) -> None:
    _note_debug(context, option, (value or "").lower() == "debug")


def _note_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    root = context.find_root()
    if value and root.obj is not None:
        root.obj.debug = True


job_argument = click.argument("job", shell_complete=completers.jobs)
"""One job; the command receives its name as ``job``."""

optional_job_argument = click.argument("job", default="", shell_complete=completers.jobs)
"""One job, or an empty ``job``."""


def type_option(command: F) -> F:
    """Add ``-T``, the kind of the job; the command receives it as ``kind``."""
    return click.option(
        "-T",
        "--type",
        "kind",
        default="",
        shell_complete=completers.job_kinds,
        help="Kind of job, such as pytorchjob or tf.",
    )(command)


class _OutputFormat(click.Choice[str]):
    """An output format, or ``jsonpath=TEMPLATE`` for commands that print ``json`` and ``table``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if "json" in self.choices and "table" in self.choices and str(value).startswith(JSONPATH):
            return str(value)
        return super().convert(value, param, ctx)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        message = super().get_invalid_choice_message(value, ctx)
        if "table" not in self.choices:
            return message
        return f"{message.rstrip('.')}, and no {JSONPATH}TEMPLATE."


JSONPATH = "jsonpath="


def output_option(*formats: str) -> Callable[[F], F]:
    """Add ``-o`` with these formats, without arguments those of lists; the first is the default."""
    formats = formats or ("table", "wide", "json", "yaml", "name")
    further = ", or jsonpath=TEMPLATE" if "table" in formats else ""
    return click.option(
        "-o",
        "--output",
        type=_OutputFormat(formats),
        default=formats[0],
        show_default=True,
        help=f"How to print the result{further}.",
    )


def warn_of_unreadable(jobs: "JobClient") -> None:
    """Report kinds that the result lacks because the user may not list them."""
    if jobs.unreadable:
        left_out = ", ".join(sorted(jobs.unreadable))
        print_status(
            f"Not shown: {left_out}; you may not list them ('kubectl auth can-i' shows why)."
        )
