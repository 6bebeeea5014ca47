"""Collects the inputs of a container run: configuration, devices, environment, plan."""

from gangline.api.container import Container
from gangline.api.pod import Pod
from gangline.local.kubelet.config_source import Names, names_in_environment, wants_token
from gangline.local.kubelet.context import NodeContext
from gangline.local.kubelet.devices import device_variables, gpus_of
from gangline.local.kubelet.environment import ConfigProblem, Sources, build_environment
from gangline.local.kubelet.images import Image
from gangline.local.kubelet.planning import Ingredients, build_plan
from gangline.local.kubelet.pod_home import PodHome
from gangline.local.kubelet.runtime.contract import ContainerPlan


async def plan_run(home: PodHome, container: Container, number: int) -> ContainerPlan:
    """Return the plan of one run.

    Raises:
        ConfigProblem: an object that the container refers to is missing.
        NoCommand: there is no command.
        ApiError: the API server does not answer.
        OSError: the disk is full, or a folder cannot be written.
    """
    assert home.attachment is not None, "containers are started in prepared pods only"
    context = home.context
    image = context.images.resolve(container.image)
    if number == 0:
        _tell_image(home, container, image)
    gpus = context.devices.assign(home.pod.metadata.uid, container)
    if gpus is None:
        raise ConfigProblem(f"{gpus_of(container)} free GPUs are required, the node has fewer")
    sources = await gather_sources(
        context, home.pod, names_in_environment(container), home.record.ip
    )
    base = {
        **image.variables,
        "HOSTNAME": home.attachment.hostname,
        **({"TERM": "xterm"} if container.tty else {}),
        **device_variables(gpus, bool(context.node.gpus)),
    }
    env = build_environment(home.pod, container, sources, base, context.services())
    ingredients = Ingredients(
        image, env, home.folders, home.volumes, home.attachment, gpus, home.api_access
    )
    return build_plan(home.pod, container, number, ingredients)


async def gather_sources(context: NodeContext, pod: Pod, names: Names, ip: str) -> Sources:
    """Fetch the values for environments and volumes.

    Raises:
        ApiError: the API server does not answer.
    """
    maps, secrets = await context.configs.collect(pod.metadata.namespace, names)
    return Sources(
        config_maps=maps,
        secrets=secrets,
        allocatable=context.allocatable,
        node_name=context.node.name,
        host_ip=context.node.address,
        pod_ip=ip,
        service_account_token=await context.access.token(pod) if wants_token(pod) else "",
    )


def _tell_image(home: PodHome, container: Container, image: Image) -> None:
    if image.matched:
        message = f'Image "{container.image}" maps to {image.description}'
        home.tell("Normal", "Pulled", message)
    else:
        message = (
            f'Image "{container.image}" is not in the image map: '
            f"container {container.name} runs in {image.description}"
        )
        home.tell("Normal", "ImageNotMapped", message)
