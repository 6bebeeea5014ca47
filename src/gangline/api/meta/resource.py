"""The address of a kind in the API, and the struct that its objects are decoded to."""

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind: its group, version, plural and scope, and the type its objects decode to."""

    type: type[T]
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    _type_path: str = field(default="", init=False, repr=False, compare=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Python calls this only for a slot that is not set: the type of a deferred resource.
            if name != "type" or not self._type_path:
                raise AttributeError(name)
            module, _, class_name = self._type_path.rpartition(".")
            class_ = getattr(import_module(module), class_name)
            object.__setattr__(self, "type", class_)
            return class_

    @property
    def api_version(self) -> str:
        """``v1`` for the core group, else ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Return the path of a collection, object or subresource (``namespace`` None: all
        namespaces).
        """
        parts = [self.prefix]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


def deferred_resource(
    type_path: str, group: str, version: str, plural: str, kind: str, *, namespaced: bool = True
) -> Resource[Any]:
    """Return a resource whose type, such as ``gangline.api.core.pod.Pod``, is imported when read.

    The structs of a kind take milliseconds to build. A table of resources therefore names them, and
    a command builds those that it decodes.
    """
    made: Resource[Any] = object.__new__(Resource)
    values = {"group": group, "version": version, "plural": plural, "kind": kind}
    for name, value in (values | {"namespaced": namespaced, "_type_path": type_path}).items():
        object.__setattr__(made, name, value)
    return made
