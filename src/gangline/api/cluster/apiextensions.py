"""CustomResourceDefinitions: kinds that are added to a cluster at run time."""

from typing import Annotated

import msgspec

from gangline.api.meta.field_doc import FreeForm, doc
from gangline.api.meta.objects import Condition, Object, Wire


class CustomResourceDefinitionNames(Wire):
    """The names of a kind."""

    plural: Annotated[str, doc("Name in paths.", required=True)] = ""
    singular: Annotated[str, doc("Name for one; the kind in lower case.")] = ""
    short_names: Annotated[list[str], doc("Short names.")] = []
    kind: Annotated[str, doc("CamelCase name of the kind.", required=True)] = ""
    list_kind: Annotated[str, doc("Kind of lists; KINDList.")] = ""
    categories: Annotated[list[str], doc("Groups of kinds, such as all.")] = []


class CustomResourceColumnDefinition(Wire):
    """A column that kubectl get prints."""

    name: Annotated[str, doc("Heading.", required=True)] = ""
    type: Annotated[str, doc("integer, number, string, boolean or date.", required=True)] = ""
    format: Annotated[str, doc("Refines the type.")] = ""
    description: Annotated[str, doc("Description of the column.")] = ""
    priority: Annotated[int, doc("Above 0: only in wide output.")] = 0
    json_path: Annotated[str, doc("JSONPath of the value.", required=True)] = ""


class CustomResourceValidation(Wire):
    """The schema of a kind."""

    open_apiv3_schema: Annotated[FreeForm | None, doc("Structural OpenAPI schema.")] = (
        msgspec.field(name="openAPIV3Schema", default=None)
    )


class CustomResourceSubresourceScale(Wire):
    """Where the fields of the scale subresource are."""

    spec_replicas_path: Annotated[str, doc("Desired number.", required=True)] = ""
    status_replicas_path: Annotated[str, doc("Observed number.", required=True)] = ""
    label_selector_path: Annotated[str, doc("Selector of the pods, as text.")] = ""


class CustomResourceSubresources(Wire):
    """The subresources of a kind."""

    status: Annotated[FreeForm | None, doc("If given, /status is served.")] = None
    scale: Annotated[CustomResourceSubresourceScale | None, doc("If given, /scale is served.")] = (
        None
    )


class SelectableField(Wire):
    """A field that field selectors may use."""

    json_path: Annotated[str, doc("JSONPath of the field.", required=True)] = ""


class CustomResourceDefinitionVersion(Wire):
    """One version of a kind."""

    name: Annotated[str, doc("Such as v1.", required=True)] = ""
    served: Annotated[bool, doc("The version is served.", required=True)] = False
    storage: Annotated[bool, doc("The version that is stored.", required=True)] = False
    deprecated: Annotated[bool, doc("Warn clients that use it.")] = False
    deprecation_warning: Annotated[str | None, doc("The warning.")] = None
    schema: Annotated[CustomResourceValidation | None, doc("Its schema.")] = None
    subresources: Annotated[CustomResourceSubresources | None, doc("Its subresources.")] = None
    additional_printer_columns: Annotated[
        list[CustomResourceColumnDefinition], doc("Columns of kubectl get.")
    ] = []
    selectable_fields: Annotated[list[SelectableField], doc("Fields to select by.")] = []


class CustomResourceDefinitionSpec(Wire):
    """The desired definition of a kind."""

    group: Annotated[str, doc("API group.", required=True)] = ""
    names: Annotated[CustomResourceDefinitionNames, doc("Its names.", required=True)] = (
        CustomResourceDefinitionNames()
    )
    scope: Annotated[
        str,
        doc("Whether objects are in namespaces.", required=True, values=("Cluster", "Namespaced")),
    ] = ""
    versions: Annotated[
        list[CustomResourceDefinitionVersion], doc("Its versions.", required=True)
    ] = []
    conversion: Annotated[FreeForm | None, doc("How versions are converted.")] = None
    preserve_unknown_fields: Annotated[bool, doc("Old form; must be false.")] = False


class CustomResourceDefinitionStatus(Wire):
    """Whether a kind is served."""

    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []
    accepted_names: Annotated[CustomResourceDefinitionNames, doc("Names in use.")] = (
        CustomResourceDefinitionNames()
    )
    stored_versions: Annotated[list[str], doc("Versions that were ever stored.")] = []
    observed_generation: Annotated[int | None, doc("Generation that was observed.")] = None


class CustomResourceDefinition(Object):
    """The definition of a custom kind."""

    spec: Annotated[CustomResourceDefinitionSpec, doc("Desired definition.", required=True)] = (
        CustomResourceDefinitionSpec()
    )
    status: Annotated[CustomResourceDefinitionStatus, doc("Observed state.")] = (
        CustomResourceDefinitionStatus()
    )
