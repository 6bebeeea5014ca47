"""Expressions of the Common Expression Language: Kubernetes' functions, and rules of schemas."""

from importlib.util import find_spec

CONDITION_VARIABLES = ("object", "oldObject", "request")
"""What match conditions of webhooks know."""
POLICY_VARIABLES = (*CONDITION_VARIABLES, "namespaceObject", "params", "variables")
"""What expressions of admission policies know. Without the authorizer."""


def missing_library() -> str:
    """Return why expressions cannot be evaluated; empty if they can. Images of the control plane
    do not have the library, which takes 16 MB.
    """
    return "" if find_spec("cel_expr_python") else "expressions need the package cel-expr-python"
