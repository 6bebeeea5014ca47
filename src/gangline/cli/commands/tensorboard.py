"""``tensorboard``: open the TensorBoard of a job in a browser; start one if there is none."""

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import command
from gangline.cli.params.options import job_argument
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.output import print_status

if TYPE_CHECKING:
    from gangline.kube.client.client import ApiClient

_POLL_INTERVAL_S = 0.5


@command(
    "tensorboard",
    examples="""
        gangline tensorboard digits
        gangline tensorboard digits --port 6006 --no-open
        gangline tensorboard digits --stop
    """,
)
@job_argument
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Local port; 0 selects a free port."
)
@click.option("--logdir", default="", help="Folder of event files, for a new TensorBoard.")
@click.option("--image", default="", help="Image, for a new TensorBoard.")
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option("--stop", is_flag=True, help="Delete the job's TensorBoard.")
@job_command
async def tensorboard_command(
    job: str,
    port: int,
    logdir: str,
    image: str,
    no_open: bool,
    stop: bool,
    cluster: ClusterSession,
) -> None:
    """Open the TensorBoard of a job; start one if there is none."""
    if stop:
        await _stop(cluster.client, cluster.namespace, job)
        return
    await _start_if_missing(cluster, job, logdir, image)
    await _forward_and_open(cluster.client, cluster.namespace, job, port, browser=not no_open)


async def _stop(client: "ApiClient", namespace: str, job: str) -> None:
    from gangline.api.resources import DEPLOYMENTS, SERVICES
    from gangline.cli.submit.owned_objects import service_name

    name = service_name(job)
    await client.delete(DEPLOYMENTS, name, namespace, propagation="Background")
    await client.delete(SERVICES, name, namespace, propagation="Background")
    click.echo(f"TensorBoard of {job} deleted")


async def _start_if_missing(cluster: ClusterSession, name: str, logdir: str, image: str) -> None:
    """Start a TensorBoard for a job without one."""
    from gangline.api.resources import SERVICES
    from gangline.cli.submit.owned_objects import service_name, tensorboard_objects
    from gangline.kube.errors import NotFound
    from gangline.sdk.manifests import with_owner

    jobs, namespace = cluster.jobs, cluster.namespace
    stored = await jobs.manifest(name, namespace)
    try:
        await cluster.client.get(SERVICES, service_name(name), namespace)
    except NotFound:
        pass
    else:
        return
    if not logdir:
        raise CommandError(
            f"job {name} has no TensorBoard yet",
            hint="Start one with --logdir FOLDER, the folder of the job's event files.",
            code=ExitCode.USAGE,
        )
    mounts = find_event_mount(stored, logdir)
    for manifest in tensorboard_objects(name, image, logdir, mounts, {}):
        await jobs.submit(with_owner(manifest, stored), namespace)
    print_status(f"Started a TensorBoard for {name}.")


def find_event_mount(
    job: dict[str, Any], logdir: str
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the volume of a job that contains a folder, and its mount.

    Raises:
        CommandError: no volume that other pods can mount contains it.
    """
    from gangline.sdk.manifests import iterate_roles

    for _, role in iterate_roles(job):
        pod = role["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod.get("volumes") or []}
        for mount in pod["containers"][0].get("volumeMounts") or []:
            folder, volume = mount["mountPath"].rstrip("/"), volumes[mount["name"]]
            shared = "persistentVolumeClaim" in volume or "hostPath" in volume
            if shared and f"{logdir}/".startswith(f"{folder}/"):
                return [(volume, mount)]
    raise CommandError(
        f"{logdir} is not in a claim or node folder that the job mounts",
        hint="TensorBoard reads volumes that several pods can mount: write to a --data claim.",
        code=ExitCode.USAGE,
    )


async def _wait_ready(client: "ApiClient", namespace: str, job: str) -> None:
    """Wait until the TensorBoard answers; report why it does not, whenever that changes.

    Raises:
        CommandError: its program ended.
    """
    from gangline.sdk.addresses import read_tensorboard_state

    reported = ""
    while not (state := await read_tensorboard_state(client, namespace, job)).ready:
        if state.crashed:
            raise CommandError(
                f"the TensorBoard of {job} does not run: {state.problem}",
                hint="Its image must contain TensorBoard ('pip install tensorboard' in the "
                "environment of the pods, or another --image), and its folder must exist.\n"
                f"'gangline tensorboard {job} -n {namespace} --stop' deletes it.",
            )
        if state.problem != reported:
            print_status(f"Waiting for TensorBoard: {state.problem}; Ctrl-C gives up.")
        reported = state.problem
        await asyncio.sleep(_POLL_INTERVAL_S)


async def _forward_and_open(
    client: "ApiClient", namespace: str, job: str, port: int, *, browser: bool
) -> None:
    """Wait until the TensorBoard runs, forward a port to it, and open it."""
    from gangline.cli.submit.owned_objects import PORT, service_name
    from gangline.kube.client.port_forward import forward_port
    from gangline.sdk.addresses import PortTarget, resolve_port_target

    service = PortTarget(namespace, f"svc/{service_name(job)}")

    async def target() -> tuple[str, int]:
        return await resolve_port_target(client, service, PORT)

    await _wait_ready(client, namespace, job)
    opened = forward_port(
        client.transport, namespace, target, local_port=port, on_error=print_status
    )
    async with opened as local:
        address = f"http://127.0.0.1:{local}"
        click.echo(f"TensorBoard of {job}: {address}")
        sys.stdout.flush()
        if browser and sys.stdout.isatty():
            import webbrowser

            await asyncio.to_thread(webbrowser.open, address)
        await asyncio.Event().wait()
