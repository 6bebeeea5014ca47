"""CustomResourceDefinitions: kinds that are added to a cluster at run time."""

from typing import Annotated

import msgspec

from gangline.api.meta.field_doc import FreeForm, field_doc
from gangline.api.meta.objects import Condition, Object, Wire


class CustomResourceDefinitionNames(Wire):
    """The names of a kind."""

    plural: Annotated[str, field_doc("Name in paths.", required=True)] = ""
    singular: Annotated[str, field_doc("Name for one; the kind in lower case.")] = ""
    short_names: Annotated[list[str], field_doc("Short names.")] = []
    kind: Annotated[str, field_doc("CamelCase name of the kind.", required=True)] = ""
    list_kind: Annotated[str, field_doc("Kind of lists; KINDList.")] = ""
    categories: Annotated[list[str], field_doc("Groups of kinds, such as all.")] = []


class CustomResourceColumnDefinition(Wire):
    """A column that kubectl get prints."""

    name: Annotated[str, field_doc("Heading.", required=True)] = ""
    type: Annotated[str, field_doc("integer, number, string, boolean or date.", required=True)] = ""
    format: Annotated[str, field_doc("Refines the type.")] = ""
    description: Annotated[str, field_doc("Description of the column.")] = ""
    priority: Annotated[int, field_doc("Above 0: only in wide output.")] = 0
    json_path: Annotated[str, field_doc("JSONPath of the value.", required=True)] = ""


class CustomResourceValidation(Wire):
    """The schema of a kind."""

    open_apiv3_schema: Annotated[FreeForm | None, field_doc("Structural OpenAPI schema.")] = (
        msgspec.field(name="openAPIV3Schema", default=None)
    )


class CustomResourceSubresourceScale(Wire):
    """Where the fields of the scale subresource are."""

    spec_replicas_path: Annotated[str, field_doc("Desired number.", required=True)] = ""
    status_replicas_path: Annotated[str, field_doc("Observed number.", required=True)] = ""
    label_selector_path: Annotated[str, field_doc("Selector of the pods, as text.")] = ""


class CustomResourceSubresources(Wire):
    """The subresources of a kind."""

    status: Annotated[FreeForm | None, field_doc("If given, /status is served.")] = None
    scale: Annotated[
        CustomResourceSubresourceScale | None, field_doc("If given, /scale is served.")
    ] = None


class SelectableField(Wire):
    """A field that field selectors may use."""

    json_path: Annotated[str, field_doc("JSONPath of the field.", required=True)] = ""


class CustomResourceDefinitionVersion(Wire):
    """One version of a kind."""

    name: Annotated[str, field_doc("Such as v1.", required=True)] = ""
    served: Annotated[bool, field_doc("The version is served.", required=True)] = False
    storage: Annotated[bool, field_doc("The version that is stored.", required=True)] = False
    deprecated: Annotated[bool, field_doc("Warn clients that use it.")] = False
    deprecation_warning: Annotated[str | None, field_doc("The warning.")] = None
    schema: Annotated[CustomResourceValidation | None, field_doc("Its schema.")] = None
    subresources: Annotated[CustomResourceSubresources | None, field_doc("Its subresources.")] = (
        None
    )
    additional_printer_columns: Annotated[
        list[CustomResourceColumnDefinition], field_doc("Columns of kubectl get.")
    ] = []
    selectable_fields: Annotated[list[SelectableField], field_doc("Fields to select by.")] = []


class CustomResourceDefinitionSpec(Wire):
    """The desired definition of a kind."""

    group: Annotated[str, field_doc("API group.", required=True)] = ""
    names: Annotated[CustomResourceDefinitionNames, field_doc("Its names.", required=True)] = (
        CustomResourceDefinitionNames()
    )
    scope: Annotated[
        str,
        field_doc(
            "Whether objects are in namespaces.", required=True, values=("Cluster", "Namespaced")
        ),
    ] = ""
    versions: Annotated[
        list[CustomResourceDefinitionVersion], field_doc("Its versions.", required=True)
    ] = []
    conversion: Annotated[FreeForm | None, field_doc("How versions are converted.")] = None
    preserve_unknown_fields: Annotated[bool, field_doc("Old form; must be false.")] = False


class CustomResourceDefinitionStatus(Wire):
    """Whether a kind is served."""

    conditions: Annotated[list[Condition], field_doc("Current conditions.", keys=("type",))] = []
    accepted_names: Annotated[CustomResourceDefinitionNames, field_doc("Names in use.")] = (
        CustomResourceDefinitionNames()
    )
    stored_versions: Annotated[list[str], field_doc("Versions that were ever stored.")] = []
    observed_generation: Annotated[int | None, field_doc("Generation that was observed.")] = None


class CustomResourceDefinition(Object):
    """The definition of a custom kind."""

    spec: Annotated[
        CustomResourceDefinitionSpec, field_doc("Desired definition.", required=True)
    ] = CustomResourceDefinitionSpec()
    status: Annotated[CustomResourceDefinitionStatus, field_doc("Observed state.")] = (
        CustomResourceDefinitionStatus()
    )
