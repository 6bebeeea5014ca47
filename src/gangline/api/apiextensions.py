"""CustomResourceDefinitions: kinds that are added to a cluster at run time."""

from typing import Annotated

import msgspec

from gangline.api.describe import FreeForm, about
from gangline.api.meta import Condition, Object, Wire


class CustomResourceDefinitionNames(Wire):
    """The names of a kind."""

    plural: Annotated[str, about("Name in paths.", required=True)] = ""
    singular: Annotated[str, about("Name for one; the kind in lower case.")] = ""
    short_names: Annotated[list[str], about("Short names.")] = []
    kind: Annotated[str, about("CamelCase name of the kind.", required=True)] = ""
    list_kind: Annotated[str, about("Kind of lists; KINDList.")] = ""
    categories: Annotated[list[str], about("Groups of kinds, such as all.")] = []


class CustomResourceColumnDefinition(Wire):
    """A column that kubectl get prints."""

    name: Annotated[str, about("Heading.", required=True)] = ""
    type: Annotated[str, about("integer, number, string, boolean or date.", required=True)] = ""
    format: Annotated[str, about("Refines the type.")] = ""
    description: Annotated[str, about("Description of the column.")] = ""
    priority: Annotated[int, about("Above 0: only in wide output.")] = 0
    json_path: Annotated[str, about("JSONPath of the value.", required=True)] = ""


class CustomResourceValidation(Wire):
    """The schema of a kind."""

    open_apiv3_schema: Annotated[FreeForm | None, about("Structural OpenAPI schema.")] = (
        msgspec.field(name="openAPIV3Schema", default=None)
    )


class CustomResourceSubresourceScale(Wire):
    """Where the fields of the scale subresource are."""

    spec_replicas_path: Annotated[str, about("Desired number.", required=True)] = ""
    status_replicas_path: Annotated[str, about("Observed number.", required=True)] = ""
    label_selector_path: Annotated[str, about("Selector of the pods, as text.")] = ""


class CustomResourceSubresources(Wire):
    """The subresources of a kind."""

    status: Annotated[FreeForm | None, about("If given, /status is served.")] = None
    scale: Annotated[
        CustomResourceSubresourceScale | None, about("If given, /scale is served.")
    ] = None


class SelectableField(Wire):
    """A field that field selectors may use."""

    json_path: Annotated[str, about("JSONPath of the field.", required=True)] = ""


class CustomResourceDefinitionVersion(Wire):
    """One version of a kind."""

    name: Annotated[str, about("Such as v1.", required=True)] = ""
    served: Annotated[bool, about("The version is served.", required=True)] = False
    storage: Annotated[bool, about("The version that is stored.", required=True)] = False
    deprecated: Annotated[bool, about("Warn clients that use it.")] = False
    deprecation_warning: Annotated[str | None, about("The warning.")] = None
    schema: Annotated[CustomResourceValidation | None, about("Its schema.")] = None
    subresources: Annotated[CustomResourceSubresources | None, about("Its subresources.")] = None
    additional_printer_columns: Annotated[
        list[CustomResourceColumnDefinition], about("Columns of kubectl get.")
    ] = []
    selectable_fields: Annotated[list[SelectableField], about("Fields to select by.")] = []


class CustomResourceDefinitionSpec(Wire):
    """The desired definition of a kind."""

    group: Annotated[str, about("API group.", required=True)] = ""
    names: Annotated[CustomResourceDefinitionNames, about("Its names.", required=True)] = (
        CustomResourceDefinitionNames()
    )
    scope: Annotated[
        str,
        about(
            "Whether objects are in namespaces.", required=True, values=("Cluster", "Namespaced")
        ),
    ] = ""
    versions: Annotated[
        list[CustomResourceDefinitionVersion], about("Its versions.", required=True)
    ] = []
    conversion: Annotated[FreeForm | None, about("How versions are converted.")] = None
    preserve_unknown_fields: Annotated[bool, about("Old form; must be false.")] = False


class CustomResourceDefinitionStatus(Wire):
    """Whether a kind is served."""

    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []
    accepted_names: Annotated[CustomResourceDefinitionNames, about("Names in use.")] = (
        CustomResourceDefinitionNames()
    )
    stored_versions: Annotated[list[str], about("Versions that were ever stored.")] = []
    observed_generation: Annotated[int | None, about("Generation that was observed.")] = None


class CustomResourceDefinition(Object):
    """The definition of a custom kind."""

    spec: Annotated[CustomResourceDefinitionSpec, about("Desired definition.", required=True)] = (
        CustomResourceDefinitionSpec()
    )
    status: Annotated[CustomResourceDefinitionStatus, about("Observed state.")] = (
        CustomResourceDefinitionStatus()
    )
