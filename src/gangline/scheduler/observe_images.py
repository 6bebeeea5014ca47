"""Converts images of nodes and pods.

Nodes list many images, mostly the same ones: equal entries are interned across nodes.
"""

from functools import lru_cache

from msgspec.structs import replace

from gangline.api.node import ContainerImage, Node
from gangline.scheduler.image_locality import PodImages, normalize_image_name
from gangline.scheduler.wire import ImagedPodSpec, LeanPodSpec

MAX_IMAGE_BYTES = 2**50
"""Larger sizes are clamped."""
_Listed = tuple[tuple[str, int], ...]
"""Image names with their bytes."""


def slim_node(node: Node) -> Node:
    """Drop image lists and what heartbeats change: they are long, and there are many nodes."""
    status = replace(node.status, images=[], volumes_in_use=[], volumes_attached=[])
    return replace(node, status=status)


def slim_node_with_images(node: Node) -> Node:
    """Drop what heartbeats change, and intern the images."""
    images = [_interned_image(tuple(image.names), image.size_bytes) for image in node.status.images]
    slim = slim_node(node)
    return replace(slim, status=replace(slim.status, images=images))


def node_images(node: Node) -> _Listed:
    """Return the images of a node, by each of their names."""
    sizes: dict[str, tuple[str, int]] = {}
    for image in node.status.images:
        for entry in _entries(tuple(image.names), image.size_bytes):
            sizes[entry[0]] = entry
    return tuple(sizes[name] for name in sorted(sizes))


def pod_images(spec: LeanPodSpec) -> PodImages:
    """Return the images of a pod's containers; empty if they were not read."""
    if not isinstance(spec, ImagedPodSpec):
        return ()
    containers = (*spec.init_containers, *spec.containers)
    return tuple(sorted(normalize_image_name(container.image) for container in containers))


@lru_cache(maxsize=16_384)
def _interned_image(names: tuple[str, ...], size: int) -> ContainerImage:
    return ContainerImage(list(names), size)


@lru_cache(maxsize=16_384)
def _entries(names: tuple[str, ...], size: int) -> _Listed:
    """Each name of an image with its bytes; absurd ones are cut."""
    return tuple((normalize_image_name(name), min(MAX_IMAGE_BYTES, max(0, size))) for name in names)
