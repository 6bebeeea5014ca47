"""References from one object to another."""

from typing import Annotated

from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import Wire


class LocalObjectReference(Wire):
    """An object of the same namespace, by name."""

    name: Annotated[str, doc("Name of the object.")] = ""


class ObjectReference(Wire):
    """Any object, or a field of it."""

    kind: Annotated[str, doc("Kind of the object.")] = ""
    namespace: Annotated[str, doc("Its namespace.")] = ""
    name: Annotated[str, doc("Its name.")] = ""
    uid: Annotated[str, doc("Its unique id.")] = ""
    api_version: Annotated[str, doc("Its API version.")] = ""
    resource_version: Annotated[str, doc("Its resource version.")] = ""
    field_path: Annotated[str, doc("A part of it, such as spec.containers{name}.")] = ""


class SecretReference(Wire):
    """A Secret in any namespace."""

    name: Annotated[str, doc("Name of the Secret.")] = ""
    namespace: Annotated[str, doc("Its namespace.")] = ""


class TypedLocalObjectReference(Wire):
    """An object of the same namespace, by kind and name."""

    api_group: Annotated[str, doc("Its API group; empty for the core group.")] = ""
    kind: Annotated[str, doc("Its kind.", required=True)] = ""
    name: Annotated[str, doc("Its name.", required=True)] = ""


class TypedObjectReference(TypedLocalObjectReference):
    """An object by kind, name and optionally another namespace."""

    namespace: Annotated[str, doc("Its namespace; this one when not given.")] = ""
