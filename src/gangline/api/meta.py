"""What every Kubernetes object carries: the wire base class, object metadata, conditions, status.

Structs are decoded straight from the wire by msgspec, hold only what somebody here reads, ignore
unknown fields and are frozen: what a cache holds is never changed in place. Wire names are
camelCase; Python names are snake_case; the few that do not follow (``podIP``) name their field.
"""

from datetime import datetime
from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of everything that travels: immutable, camelCase on the wire, defaults left out."""


class OwnerReference(Wire):
    """Who owns an object: the garbage collector removes it after its owners."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Wire):
    """The identity, labels and life cycle marks of an object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages this object, if one does."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Object(Wire):
    """Any object: what is common to all kinds. Kinds extend it."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class ListMeta(Wire):
    """What a list says of itself: the revision it was read at, and how to go on."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class Condition(Wire):
    """One aspect of an object's state (``metav1.Condition``, and pods' and nodes' older kind)."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int | None = None
    last_transition_time: datetime | None = None
    last_update_time: datetime | None = None
    last_probe_time: datetime | None = None
    last_heartbeat_time: datetime | None = None


class LabelSelectorRequirement(Wire):
    """One expression of a label selector: In, NotIn, Exists or DoesNotExist."""

    key: str = ""
    operator: str = ""
    values: list[str] = []


class LabelSelector(Wire):
    """Which objects are meant: all labels equal and all expressions true. Empty selects all."""

    match_labels: dict[str, str] = {}
    match_expressions: list[LabelSelectorRequirement] = []


class StatusCause(Wire):
    """One mistake in one field of a refused request."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Wire):
    """Which object a refused request was about, and every mistake in it."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[StatusCause] = []
    retry_after_seconds: int = 0


class Status(Wire):
    """The answer of an API server to a request that has no object to give back."""

    api_version: str = "v1"
    kind: str = "Status"
    metadata: ListMeta = ListMeta()
    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: int = 0
