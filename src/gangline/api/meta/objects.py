"""The common parts of all Kubernetes objects: wire base class, metadata, conditions, status.

Structs are decoded directly from JSON by msgspec. They have only the fields that are read here,
ignore unknown fields, and are frozen, because caches share them. Wire names are camelCase, Python
names snake_case; exceptions (``podIP``) name their wire field explicitly.
"""

from datetime import datetime
from typing import Annotated, dataclass_transform

import msgspec

from gangline.api.meta.field_doc import doc


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of all wire structs: immutable, camelCase on the wire, default values omitted."""


class OwnerReference(Wire):
    """An owner of an object: the garbage collector deletes the object after its owners."""

    api_version: Annotated[str, doc("API version of the owner.", required=True)] = ""
    kind: Annotated[str, doc("Kind of the owner.", required=True)] = ""
    name: Annotated[str, doc("Name of the owner.", required=True)] = ""
    uid: Annotated[str, doc("Unique id of the owner.", required=True)] = ""
    controller: Annotated[bool, doc("The owner manages the object.")] = False
    block_owner_deletion: Annotated[bool, doc("The owner's deletion waits for this object.")] = (
        False
    )


class ObjectMeta(Wire):
    """The identity, labels and life cycle fields of an object."""

    name: Annotated[str, doc("Name; unique among its kind in its namespace.")] = ""
    generate_name: Annotated[str, doc("Start of a name that the server completes.")] = ""
    namespace: Annotated[str, doc("Namespace of the object.")] = ""
    uid: Annotated[str, doc("Unique id; made by the server.")] = ""
    resource_version: Annotated[str, doc("Changes with every write.")] = ""
    generation: Annotated[int, doc("Counts changes of the desired state.")] = 0
    creation_timestamp: Annotated[
        datetime | None,
        doc("CreationTimestamp is a timestamp: when the object was created.", nullable=True),
    ] = None
    deletion_timestamp: Annotated[datetime | None, doc("Time by which it is to be deleted.")] = None
    deletion_grace_period_seconds: Annotated[int | None, doc("Seconds for a graceful end.")] = None
    labels: Annotated[dict[str, str], doc("Labels, for selectors.")] = {}
    annotations: Annotated[dict[str, str], doc("Notes of tools and users.")] = {}
    owner_references: Annotated[
        list[OwnerReference], doc("Owners; it is deleted after them.", keys=("uid",))
    ] = []
    finalizers: Annotated[
        list[str], doc("Components that must clean up before it is deleted.")
    ] = []

    @property
    def controller(self) -> OwnerReference | None:
        """The owner reference of the controller; None if there is none."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Object(Wire):
    """The fields that all kinds share."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class ListMeta(Wire):
    """Metadata of a list: its revision, and the token of the next page."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class Condition(Wire):
    """One aspect of an object's state (``metav1.Condition``, or the older form of pods, nodes)."""

    type: Annotated[str, doc("Type of the condition.", required=True)] = ""
    status: Annotated[str, doc("True, False or Unknown.", required=True)] = ""
    reason: Annotated[str, doc("Why, as one CamelCase word.")] = ""
    message: Annotated[str, doc("Why, for users.")] = ""
    observed_generation: Annotated[int | None, doc("Generation that was observed.")] = None
    last_transition_time: Annotated[
        datetime | None, doc("Time of the last change of the status.")
    ] = None
    last_update_time: Annotated[datetime | None, doc("Time of the last change.")] = None
    last_probe_time: Annotated[datetime | None, doc("Time of the last check.", nullable=True)] = (
        None
    )
    last_heartbeat_time: Annotated[datetime | None, doc("Time of the last report.")] = None


class LabelSelectorRequirement(Wire):
    """One expression of a label selector."""

    key: Annotated[str, doc("Label key.", required=True)] = ""
    operator: Annotated[
        str,
        doc(
            "Relation of key and values.",
            required=True,
            values=("In", "NotIn", "Exists", "DoesNotExist"),
        ),
    ] = ""
    values: Annotated[list[str], doc("Values; none for Exists and DoesNotExist.")] = []


class LabelSelector(Wire):
    """Selects objects that have all labels and match all expressions. An empty one selects all."""

    match_labels: Annotated[dict[str, str], doc("Labels that must be equal.")] = {}
    match_expressions: Annotated[
        list[LabelSelectorRequirement], doc("Expressions that must be true.")
    ] = []


class StatusCause(Wire):
    """One field error in a refused request."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Wire):
    """The object of a refused request, and every error in it."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[StatusCause] = []
    retry_after_seconds: int = 0


class Status(Wire):
    """The response of an API server to a request that returns no object."""

    api_version: str = "v1"
    kind: str = "Status"
    metadata: ListMeta = ListMeta()
    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: int = 0
