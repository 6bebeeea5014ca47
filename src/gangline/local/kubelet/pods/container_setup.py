"""Collects the inputs of a container run: configuration, devices, environment, plan."""

from gangline.api.core.container import Container
from gangline.local.kubelet.config.config_source import (
    ConfigNames,
    names_in_environment,
    token_specs,
)
from gangline.local.kubelet.config.environment import (
    ContainerConfigError,
    ValueSources,
    build_environment,
)
from gangline.local.kubelet.containers.devices import gpu_variables, requested_gpus
from gangline.local.kubelet.containers.images import ResolvedImage
from gangline.local.kubelet.containers.plan import PlanInputs, build_container_plan
from gangline.local.kubelet.pods.pod_context import PodContext
from gangline.local.kubelet.runtime.interface import ContainerPlan


async def plan_container_run(home: PodContext, container: Container, number: int) -> ContainerPlan:
    """Return the plan of one run.

    Raises:
        ContainerConfigError: an object that the container refers to is missing.
        NoCommand: there is no command.
        ApiError: the API server does not answer.
        OSError: the disk is full, or a folder cannot be written.
    """
    assert home.attachment is not None, "containers are started in prepared pods only"
    context = home.context
    image = context.images.resolve(container.image)
    if number == 0:
        _record_image_event(home, container, image)
    gpus = context.devices.assign(home.pod.metadata.uid, container)
    if gpus is None:
        raise ContainerConfigError(
            f"{requested_gpus(container)} free GPUs are required, the node has fewer"
        )
    sources = await fetch_value_sources(home, names_in_environment(container))
    base = {
        **image.variables,
        "HOSTNAME": home.attachment.hostname,
        **({"TERM": "xterm"} if container.tty else {}),
        **gpu_variables(gpus, bool(context.node.gpus)),
    }
    env = build_environment(home.pod, container, sources, base, context.services())
    ingredients = PlanInputs(
        image, env, home.folders, home.volumes, home.attachment, gpus, home.api_access
    )
    return build_container_plan(home.pod, container, number, ingredients)


async def fetch_value_sources(home: PodContext, names: ConfigNames) -> ValueSources:
    """Fetch the values for environments and volumes.

    Raises:
        ApiError: the API server does not answer.
    """
    context, pod = home.context, home.pod
    maps, secrets = await context.configs.collect(pod.metadata.namespace, names)
    tokens = {spec: await home.tokens.get(pod, spec) for spec in token_specs(pod)}
    return ValueSources(
        config_maps=maps,
        secrets=secrets,
        allocatable=context.allocatable,
        node_name=context.node.name,
        host_ip=context.node.address,
        pod_ip=home.record.ip,
        service_account_tokens={spec: token for spec, token in tokens.items() if token},
    )


def _record_image_event(home: PodContext, container: Container, image: ResolvedImage) -> None:
    if image.matched:
        message = f'Image "{container.image}" maps to {image.description}'
        home.record_event("Normal", "Pulled", message)
    else:
        message = (
            f'Image "{container.image}" is not in the image map: '
            f"container {container.name} runs in {image.description}"
        )
        home.record_event("Normal", "ImageNotMapped", message)
