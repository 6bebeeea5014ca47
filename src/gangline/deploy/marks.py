"""Labels and annotations that say who has installed an object."""

PART_OF = "app.kubernetes.io/part-of"
MANAGED_BY = "app.kubernetes.io/managed-by"
HELM_RELEASE = "meta.helm.sh/release-name"
HELM_NAMESPACE = "meta.helm.sh/release-namespace"
BOOTSTRAPPED = "kubernetes.io/bootstrapping"
"""Label of what the API server creates itself."""
