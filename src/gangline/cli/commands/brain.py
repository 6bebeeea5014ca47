"""``gangline brain``: the Brain alone, as in a real cluster."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.component_logging import logging_options, start_logging
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import group, section
from gangline.cli.params.component_options import (
    BindAddress,
    ByteSize,
    CommaSeparated,
    default_address,
    election_timing_options,
    env_flag,
    env_option,
    monitoring_options,
    own_namespace,
    take_election_timing,
)
from gangline.cli.params.options import cluster_options, debug_option

if TYPE_CHECKING:
    from gangline.brain.settings import BrainSettings
    from gangline.cli.params.target import ClusterTarget

PREFIX = "GANGLINE_BRAIN"
_option, _flag = partial(env_option, PREFIX), partial(env_flag, PREFIX)


def default_database() -> str:
    """Return the URL of a file in the user's folder."""
    from gangline.local.directory import default_home

    return f"sqlite:///{default_home() / 'brain.db'}"


database_option = _option(
    "--database",
    default="",
    help="History: sqlite:////FOLDER/FILE, postgresql://USER@HOST/NAME or mysql://USER@HOST/NAME; "
    "default: a file in ~/.gangline.",
)


@group(
    "brain",
    examples="""
        gangline brain --dry-run
        gangline brain --database postgresql://brain@db/gangline -n research
    """,
    invoke_without_command=True,
)
@cluster_options
@database_option
@_flag("--no-migrate", help="Refuse a database with an older schema, instead of migrating it.")
@_flag("--record-only", help="Record jobs; learn and advise nothing.")
@_option(
    "--record-days",
    type=click.IntRange(min=1),
    default=90,
    show_default=True,
    help="How long records of jobs are kept.",
)
@_option(
    "--record-size",
    type=ByteSize(),
    default="10Gi",
    show_default=True,
    help="How large all records may be; the oldest are deleted first.",
)
@_flag("--dry-run", help="Advise only, whatever policies and jobs allow.")
@_option(
    "--owner-names",
    type=click.Choice(["plain", "digest"]),
    default="plain",
    show_default=True,
    help="Store names of owners and jobs, or digests of them.",
)
@_option(
    "--namespace",
    "-n",
    "namespaces",
    type=CommaSeparated(),
    multiple=True,
    help="Watch jobs of this namespace only; may be repeated.",
)
@_option(
    "--policy-namespace",
    default="",
    help="Namespace of the ConfigMap gangline-brain-policy; default: as the lease.",
)
@_option(
    "--leader-election-namespace",
    default="",
    help="Namespace of the lease; the Brain's own (MY_POD_NAMESPACE), else kube-system.",
)
@section("Leader election", *election_timing_options(_option))
@_option(
    "--interval",
    "cycle_s",
    type=click.FloatRange(min=0.1),
    default=15.0,
    show_default=True,
    help="Seconds between evaluations of the jobs.",
)
@_option(
    "--usage-interval",
    "usage_s",
    type=click.FloatRange(min=0.1),
    default=30.0,
    show_default=True,
    help="Seconds between readings of the metrics API.",
)
@_option(
    "--api-bind-address",
    type=BindAddress(),
    default=lambda: default_address("127.0.0.1:8090", "127.0.0.1:0"),
    show_default="127.0.0.1:8090 in a cluster, else a free port",
    help="Address of the HTTP API; others than loopback need a certificate. 0 disables it.",
)
@_option("--tls-cert-file", default="", help="Certificate of the HTTP API.")
@_option("--tls-key-file", default="", help="Key of the certificate.")
@section("Logs, metrics and probes", *monitoring_options(_option))
@logging_options(PREFIX)
@click.pass_context
def brain_command(
    context: click.Context,
    /,
    target: "ClusterTarget",
    log_level: str,
    log_format: str,
    **flags: Any,
) -> None:
    """Run the Brain: it learns from ended jobs, advises running ones, and changes those that allow
    it.

    Each flag can also be set in the environment: GANGLINE_BRAIN_DRY_RUN=true.
    """
    context.obj.database = flags["database"]
    if context.invoked_subcommand is not None:
        return
    from gangline.brain.main import run
    from gangline.brain.settings import BadSettings

    settings = build_brain_settings(flags)
    start_logging(log_level, form=log_format)
    try:
        target.serve("gangline-brain", lambda client, stop: run(client, settings, stop))
    except BadSettings as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from error


@brain_command.command(
    "migrate",
    examples="""
        gangline brain migrate --database sqlite:////var/lib/gangline/brain.db
    """,
)
@database_option
@debug_option
@click.pass_context
def migrate_command(context: click.Context, database: str) -> None:
    """Create or update the schema of the database."""
    from gangline.brain.store.engine import open_store
    from gangline.brain.store.errors import StoreError

    url = database or getattr(context.obj, "database", "") or prepared_default_database()
    try:
        open_store(url, migrate=True).close()
    except StoreError as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from error
    click.echo("The schema of the database is up to date.")


def prepared_default_database() -> str:
    """Return the URL of the default database, whose folder exists."""
    from gangline.local.directory import default_home

    default_home().mkdir(parents=True, exist_ok=True, mode=0o700)
    return default_database()


def build_brain_settings(flags: dict[str, Any]) -> "BrainSettings":
    """Build the settings from the values of the flags.

    Raises:
        click.BadParameter: the timing of the leader election is impossible.
    """
    from gangline.brain.settings import BrainSettings
    from gangline.cli.growth_check import growth_check

    namespace = flags["leader_election_namespace"] or own_namespace()
    return BrainSettings(
        database=flags["database"] or prepared_default_database(),
        migrate=not flags["no_migrate"],
        digest_names=flags["owner_names"] == "digest",
        advises=not flags["record_only"],
        record_days=flags["record_days"],
        record_bytes=flags["record_size"],
        dry_run=flags["dry_run"],
        growth_check=growth_check(),
        namespaces=tuple(name for names in flags["namespaces"] for name in names),
        policy_namespace=flags["policy_namespace"] or namespace,
        cycle_s=flags["cycle_s"],
        usage_s=flags["usage_s"],
        leader_election_namespace=namespace,
        leader_election_timing=take_election_timing(flags),
        api_address=flags["api_bind_address"],
        tls_certificate=flags["tls_cert_file"],
        tls_key=flags["tls_key_file"],
        metrics_address=flags["metrics_bind_address"],
        health_address=flags["health_probe_bind_address"],
    )
