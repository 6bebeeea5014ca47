"""What every Kubernetes object carries: the wire base class, object metadata, conditions, status.

Structs are decoded straight from the wire by msgspec, hold only what somebody here reads, ignore
unknown fields and are frozen: what a cache holds is never changed in place. Wire names are
camelCase; Python names are snake_case; the few that do not follow (``podIP``) name their field.
"""

from datetime import datetime
from typing import Annotated, dataclass_transform

import msgspec

from gangline.api.describe import about


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of everything that travels: immutable, camelCase on the wire, defaults left out."""


class OwnerReference(Wire):
    """Who owns an object: the garbage collector removes it after its owners."""

    api_version: Annotated[str, about("API version of the owner.", required=True)] = ""
    kind: Annotated[str, about("Kind of the owner.", required=True)] = ""
    name: Annotated[str, about("Name of the owner.", required=True)] = ""
    uid: Annotated[str, about("Unique id of the owner.", required=True)] = ""
    controller: Annotated[bool, about("The owner manages the object.")] = False
    block_owner_deletion: Annotated[bool, about("The owner waits for it to go.")] = False


class ObjectMeta(Wire):
    """The identity, labels and life cycle marks of an object."""

    name: Annotated[str, about("Name; unique among its kind in its namespace.")] = ""
    generate_name: Annotated[str, about("Start of a name that the server completes.")] = ""
    namespace: Annotated[str, about("Namespace that it lives in.")] = ""
    uid: Annotated[str, about("Unique in time and space; made by the server.")] = ""
    resource_version: Annotated[str, about("Changes with every write.")] = ""
    generation: Annotated[int, about("Counts changes of what is wanted.")] = 0
    creation_timestamp: Annotated[datetime | None, about("When it was created.", nullable=True)] = (
        None
    )
    deletion_timestamp: Annotated[datetime | None, about("When it is to be gone.")] = None
    deletion_grace_period_seconds: Annotated[
        int | None, about("Seconds it is given to end well.")
    ] = None
    labels: Annotated[dict[str, str], about("What selectors go by.")] = {}
    annotations: Annotated[dict[str, str], about("What tools and people note down.")] = {}
    owner_references: Annotated[
        list[OwnerReference], about("Objects it goes with.", keys=("uid",))
    ] = []
    finalizers: Annotated[list[str], about("Who has to clean up before it goes.")] = []

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

    type: Annotated[str, about("What it is about.", required=True)] = ""
    status: Annotated[str, about("True, False or Unknown.", required=True)] = ""
    reason: Annotated[str, about("Why, in one CamelCase word.")] = ""
    message: Annotated[str, about("Why, for people.")] = ""
    observed_generation: Annotated[int | None, about("Generation that this is about.")] = None
    last_transition_time: Annotated[datetime | None, about("When the status changed.")] = None
    last_update_time: Annotated[datetime | None, about("When anything in it changed.")] = None
    last_probe_time: Annotated[
        datetime | None, about("When it was last checked.", nullable=True)
    ] = None
    last_heartbeat_time: Annotated[datetime | None, about("When it was last told.")] = None


class LabelSelectorRequirement(Wire):
    """One expression of a label selector."""

    key: Annotated[str, about("Label key.", required=True)] = ""
    operator: Annotated[
        str,
        about(
            "How key and values relate.",
            required=True,
            values=("In", "NotIn", "Exists", "DoesNotExist"),
        ),
    ] = ""
    values: Annotated[list[str], about("Values; none for Exists and DoesNotExist.")] = []


class LabelSelector(Wire):
    """Which objects are meant: all labels equal and all expressions true. Empty selects all."""

    match_labels: Annotated[dict[str, str], about("Labels that must be equal.")] = {}
    match_expressions: Annotated[
        list[LabelSelectorRequirement], about("Expressions that must be true.")
    ] = []


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
