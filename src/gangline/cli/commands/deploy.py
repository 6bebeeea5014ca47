"""``deploy`` and ``undeploy``: Gangline on a Kubernetes cluster, without Helm.

All checks come before the first change, and name everything that is wrong together.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import command
from gangline.cli.params.session import ClusterSession, cluster_command
from gangline.cli.render.output import print_status

if TYPE_CHECKING:
    from gangline.deploy.chart import Chart, ReleaseSettings
    from gangline.deploy.preflight import Problem
    from gangline.deploy.values import Values

COMPONENTS = ("operator", "scheduler", "brain")
DEFAULT_NAMESPACE = "gangline-system"
DEFAULT_RELEASE = "gangline"
ACTIONS = ("adopt", "adopt-crds")
CRD = "CustomResourceDefinition"
WEBHOOK_S = 20.0
"""Seconds until an API server calls a new webhook."""


@command(
    "deploy",
    examples="""
        gangline deploy
        gangline deploy -f values.yaml --set image.tag=1.0 --dry-run
        gangline deploy --component operator --component scheduler
        gangline deploy adopt-crds --release gangline
    """,
)
@click.argument("action", type=click.Choice(ACTIONS), required=False, metavar="[adopt|adopt-crds]")
@click.option(
    "-n",
    "--namespace",
    "release_namespace",
    default=DEFAULT_NAMESPACE,
    show_default=True,
    help="Namespace of the components; it is created if necessary.",
)
@click.option(
    "-f",
    "--values",
    "files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    help="File with values of the Helm chart.",
)
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A value, such as image.tag=1."
)
@click.option(
    "--component",
    "components",
    type=click.Choice(COMPONENTS),
    multiple=True,
    help="Install only this component; may be repeated. The webhook is part of the operator.",
)
@click.option(
    "--keep-crds", is_flag=True, help="Leave CRDs that have fields which Gangline's lack."
)
@click.option(
    "--adopt",
    "take_over",
    is_flag=True,
    help="Take over objects that were made from plain manifests.",
)
@click.option(
    "--release",
    default=DEFAULT_RELEASE,
    show_default=True,
    help="Helm release that 'adopt' and 'adopt-crds' prepare.",
)
@click.option("--dry-run", is_flag=True, help="Check only, and list what would be applied.")
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until all pods are ready."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
)
@cluster_command
async def deploy_command(  # noqa: PLR0913, PLR0917
    cluster: ClusterSession,
    action: str | None,
    release_namespace: str,
    files: Sequence[Path],
    assignments: Sequence[str],
    components: Sequence[str],
    keep_crds: bool,
    take_over: bool,
    release: str,
    dry_run: bool,
    wait: bool,
    timeout_s: float,
) -> None:
    """Install Gangline on the cluster of the kubeconfig, or upgrade it.

    The same objects as those of the Helm chart, with the same values, by server-side apply. Rights,
    versions, CRDs of others, a second installation and Pod Security are checked first.

    'adopt-crds' hands existing CRDs to a Helm release instead, before 'helm install'; 'adopt' hands
    over all objects of plain manifests. A CRD that has fields which Gangline's lacks is left.
    """
    from gangline.deploy.chart import Chart, ReleaseSettings
    from gangline.deploy.facts import read_capabilities, read_facts
    from gangline.deploy.manifests import identity_of, release_objects
    from gangline.deploy.preflight import Problem, check_installation
    from gangline.deploy.release import (
        PROBE_KIND,
        find_webhook_fault,
        install,
    )
    from gangline.deploy.rollout import RolloutError, wait_for_rollout
    from gangline.deploy.values import InvalidValues

    chart = Chart.load()
    settings = ReleaseSettings(name=release, namespace=release_namespace)
    if action:
        try:
            values = _read_values(chart, files, assignments, components)
        except InvalidValues as error:
            raise CommandError("; ".join(error.errors), code=ExitCode.USAGE) from error
        await _hand_over(cluster, values, settings, crds_only=action != "adopt", dry_run=dry_run)
        return
    capabilities = await read_capabilities(cluster.client)
    problems = []
    try:
        values = _read_values(chart, files, assignments, components)
        objects = release_objects(chart, values, settings, capabilities)
    except InvalidValues as error:
        # The cluster is checked nevertheless, for the default values.
        problems = [Problem(f"value {manifest}") for manifest in error.errors]
        objects = release_objects(chart, chart.complete({}), settings, capabilities)
    facts = await read_facts(cluster.client, objects, settings)
    result = check_installation(facts, objects, settings, keep_crds=keep_crds, adopt=take_over)
    problems += result.problems
    problems += await _kept_jobs(cluster)
    _print_problems(problems)
    if any(problem.fatal for problem in problems):
        count = sum(problem.fatal for problem in problems)
        raise CommandError(
            f"{count} problem{'s' if count > 1 else ''}; nothing was changed", code=ExitCode.USAGE
        )
    applied = [object_ for object_ in objects if identity_of(object_) not in result.skipped]
    if dry_run:
        for manifest in applied:
            click.echo(f"would apply {identity_of(manifest)}")
        return
    await install(cluster.client, objects, result.skipped, click.echo)
    if not wait:
        return
    try:
        await wait_for_rollout(cluster.client, applied, settings, timeout_s, print_status)
    except RolloutError as error:
        hint = "The objects are applied; 'gangline deploy' waits again."
        raise CommandError(str(error), hint=hint) from error
    kinds = values["kinds"]
    has_webhook = any(manifest["kind"] == "ValidatingWebhookConfiguration" for manifest in applied)
    if has_webhook and (not kinds or PROBE_KIND in kinds):
        fault = await find_webhook_fault(cluster.client, release_namespace, WEBHOOK_S)
        _report_webhook(fault, values["webhook"]["failurePolicy"], release_namespace)
    click.echo(f"Gangline {chart.metadata['appVersion']} runs in {release_namespace}.")
    click.echo("Next: 'gangline doctor' checks the cluster, 'gangline submit' starts a job.")


async def _kept_jobs(cluster: ClusterSession) -> "list[Problem]":
    """Return a note on jobs that Kubeflow Trainer has begun, if there are any."""
    from gangline.deploy.adoption import job_set_note, jobs_with_job_sets
    from gangline.deploy.preflight import Problem

    note = job_set_note(await jobs_with_job_sets(cluster.client))
    remedy = "Keep the controller of JobSets until then. New TrainJobs are run by Gangline."
    return [Problem(note, remedy, fatal=False)] if note else []


def _report_webhook(fault: str, policy: str, namespace: str) -> None:
    """Raise if no job can be created without the webhook; else only print why it does not work."""
    if not fault:
        return
    message = f"the webhook does not check jobs: {fault}"
    hint = (
        f"Let the control plane reach port 9443 of the pods of {namespace}/gangline-operator "
        "(NetworkPolicy, firewall, service mesh), or --set webhook.enabled=false."
    )
    if policy == "Fail":
        raise CommandError(f"{message}. No job can be created or changed", hint=hint)
    click.echo(f"{click.style('note:', fg='yellow')} {message}", err=True)
    click.echo("  The operator checks jobs when it runs them.", err=True)
    click.echo(f"  -> {hint}", err=True)


async def _hand_over(
    cluster: ClusterSession,
    values: "Values",
    settings: "ReleaseSettings",
    *,
    crds_only: bool,
    dry_run: bool,
) -> None:
    """Give existing objects to a Helm release; say which are left, and the value for their CRDs."""
    from gangline.deploy.adoption import helm_objects, plan_adoption
    from gangline.deploy.chart import Chart
    from gangline.deploy.facts import read_capabilities, read_existing
    from gangline.deploy.manifests import identity_of
    from gangline.deploy.release import adopt

    capabilities = await read_capabilities(cluster.client)
    objects = helm_objects(Chart.load(), values, settings, capabilities)
    if crds_only:
        objects = [object_ for object_ in objects if object_["kind"] == CRD]
    existing = await read_existing(cluster.client, objects)
    plan = plan_adoption(existing, objects, settings)
    for identity, reason in plan.left.items():
        click.echo(f"left {identity}: {reason}", err=True)
    if left := [identity.name for identity in plan.left if identity.kind == CRD]:
        click.echo(f"Install with --set 'crds.skip={{{','.join(left)}}}'.", err=True)
    _print_problems(await _kept_jobs(cluster))
    if dry_run:
        for manifest in plan.adopted:
            click.echo(f"would adopt {identity_of(manifest)}")
        return
    await adopt(cluster.client, plan.adopted, click.echo)


def _read_values(
    chart: "Chart", files: Sequence[Path], assignments: Sequence[str], components: Sequence[str]
) -> "Values":
    """Merge files, ``--component`` and ``--set``; the last wins.

    Raises:
        InvalidValues: the chart does not accept some values.
    """
    from gangline.deploy.values import parse_assignments, read_values

    changes = [read_values(file.read_text(encoding="utf-8"), str(file)) for file in files]
    if components:
        changes.append(
            {component: {"enabled": component in components} for component in COMPONENTS}
        )
    return chart.complete(*changes, parse_assignments(assignments))


def _print_problems(problems: Sequence["Problem"]) -> None:
    for problem in problems:
        word, colour = ("problem", "red") if problem.fatal else ("note", "yellow")
        click.echo(f"{click.style(f'{word}:', fg=colour)} {problem.message}", err=True)
        if problem.remedy:
            click.echo(f"  -> {problem.remedy}", err=True)


@command(
    "undeploy",
    examples="""
        gangline undeploy --dry-run
        gangline undeploy
    """,
)
@click.option("--force", is_flag=True, help="Remove it although jobs have not ended.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted.")
@cluster_command
async def undeploy_command(cluster: ClusterSession, force: bool, dry_run: bool) -> None:
    """Remove what 'deploy' has installed; CRDs, jobs, the namespace and volumes stay."""
    from gangline.deploy.manifests import identity_of
    from gangline.deploy.release import is_kept, owned_objects, unfinished_jobs, uninstall

    owned = [manifest for manifest in await owned_objects(cluster.client) if not is_kept(manifest)]
    if not owned:
        hint = "'helm uninstall' removes releases of Helm, 'kubectl delete -k' plain manifests."
        raise CommandError(
            "'gangline deploy' has installed nothing here", hint=hint, code=ExitCode.NOT_FOUND
        )
    if dry_run:
        for manifest in owned:
            click.echo(f"would delete {identity_of(manifest)}")
        return
    jobs = await unfinished_jobs(cluster.client)
    if jobs and not force:
        more = f" and {len(jobs) - 5} more" if len(jobs) > 5 else ""
        raise CommandError(
            f"{len(jobs)} jobs have not ended, and no operator would run them: "
            f"{', '.join(jobs[:5])}{more}",
            hint="--force removes Gangline nevertheless; pods of these jobs continue.",
        )
    for kept in await uninstall(cluster.client, click.echo):
        click.echo(f"kept {kept}")
