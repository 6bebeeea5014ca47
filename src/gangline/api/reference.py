"""References from one object to another."""

from typing import Annotated

from gangline.api.describe import about
from gangline.api.meta import Wire


class LocalObjectReference(Wire):
    """An object of the same namespace, by name."""

    name: Annotated[str, about("Name of the object.")] = ""


class ObjectReference(Wire):
    """Any object, or a field of it."""

    kind: Annotated[str, about("Kind of the object.")] = ""
    namespace: Annotated[str, about("Its namespace.")] = ""
    name: Annotated[str, about("Its name.")] = ""
    uid: Annotated[str, about("Its unique id.")] = ""
    api_version: Annotated[str, about("Its API version.")] = ""
    resource_version: Annotated[str, about("Its resource version.")] = ""
    field_path: Annotated[str, about("A part of it, such as spec.containers{name}.")] = ""


class SecretReference(Wire):
    """A Secret in any namespace."""

    name: Annotated[str, about("Name of the Secret.")] = ""
    namespace: Annotated[str, about("Its namespace.")] = ""


class TypedLocalObjectReference(Wire):
    """An object of the same namespace, by kind and name."""

    api_group: Annotated[str, about("Its API group; empty for the core group.")] = ""
    kind: Annotated[str, about("Its kind.", required=True)] = ""
    name: Annotated[str, about("Its name.", required=True)] = ""


class TypedObjectReference(TypedLocalObjectReference):
    """An object by kind, name and optionally another namespace."""

    namespace: Annotated[str, about("Its namespace; this one when not given.")] = ""
