"""Judges whether a release can be installed, from what was read of the cluster.

Everything that is wrong is named together, before anything is changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gangline.api.validation.security_standards import PodSecurityPolicy, describe, find_violations
from gangline.deploy.chart import Manifest, ReleaseSettings
from gangline.deploy.crd_compare import describe_loss
from gangline.deploy.manifests import (
    BOOTSTRAPPED,
    HELM_NAMESPACE,
    HELM_RELEASE,
    PART_OF,
    ObjectIdentity,
    identity_of,
)

LOWEST_MINOR = 20
UPSTREAM_OPERATOR = "training-operator"
_MAX_MESSAGE = 400


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the way of a release."""

    message: str
    remedy: str = ""
    fatal: bool = True
    """False for what is only reported."""


@dataclass(slots=True)
class InstallationFacts:
    """What was read of a cluster."""

    version: str
    """Such as ``v1.31.0``."""
    minor: int
    namespace_labels: Mapping[str, str] | None = None
    """Labels of the release's namespace; None if it does not exist or may not be read."""
    existing: Mapping[ObjectIdentity, Manifest] = field(default_factory=dict)
    """Objects of the release that exist."""
    denied: Sequence[str] = ()
    """Rights that the user lacks, such as ``create clusterroles.rbac.authorization.k8s.io``."""
    refused: Mapping[ObjectIdentity, str] = field(default_factory=dict)
    """Objects that the server would refuse, with its message."""
    deployments: Sequence[tuple[str, str]] = ()
    """Namespace and name of operators and schedulers in all namespaces."""


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """The outcome of all checks."""

    problems: list[Problem]
    skipped: frozenset[ObjectIdentity] = frozenset()
    """Objects of others that are left as they are."""


def check_installation(
    facts: InstallationFacts,
    objects: Sequence[Manifest],
    release: ReleaseSettings,
    *,
    keep_crds: bool = False,
    adopt: bool = False,
) -> PreflightResult:
    """Run all checks.

    ``keep_crds`` leaves CRDs that have fields which ours lack; ``adopt`` takes over objects without
    an owner.
    """
    problems = [
        *_check_version(facts),
        *_check_rights(facts),
        *_check_other_releases(facts, objects, release),
        *_check_pod_security(facts, objects, release),
    ]
    skipped: set[ObjectIdentity] = set()
    for manifest in objects:
        identity = identity_of(manifest)
        stored = facts.existing.get(identity)
        if stored is not None and manifest["kind"] == "CustomResourceDefinition":
            problem = _check_crd(stored, manifest, keep_crds)
        elif stored is not None and manifest["kind"] != "Namespace":
            problem = _check_owner(stored, identity, adopt)
        else:
            problem = None
        if problem is not None:
            problems.append(problem)
            skipped.add(identity)
    refused = {name: why for name, why in facts.refused.items() if name not in skipped}
    problems += _summarise_refusals(refused, facts)
    return PreflightResult(problems, frozenset(skipped))


def _check_version(facts: InstallationFacts) -> Iterator[Problem]:
    if facts.minor < LOWEST_MINOR:
        needed = f"Gangline needs 1.{LOWEST_MINOR} or later"
        yield Problem(f"Kubernetes {facts.version} is too old: {needed}", "upgrade the cluster")


def _check_rights(facts: InstallationFacts) -> Iterator[Problem]:
    if facts.denied:
        yield Problem(
            f"you may not {', '.join(facts.denied)}",
            "a cluster administrator installs Gangline (ClusterRole cluster-admin)",
        )


def _check_other_releases(
    facts: InstallationFacts, objects: Sequence[Manifest], release: ReleaseSettings
) -> Iterator[Problem]:
    own = {object_["metadata"]["name"] for object_ in objects if object_["kind"] == "Deployment"}
    namespaces = {
        namespace
        for namespace, name in facts.deployments
        if name in own and namespace != release.namespace
    }
    for namespace in sorted(namespaces):
        yield Problem(
            f"Gangline is installed in the namespace {namespace}: a cluster has one release",
            f"upgrade it with --namespace {namespace}, or remove it first",
        )
    if "gangline-operator" in own:
        for namespace, name in facts.deployments:
            if name == UPSTREAM_OPERATOR:
                yield Problem(
                    f"{namespace}/{name} runs the same kinds of jobs: both would write them",
                    f"kubectl --namespace {namespace} scale deployment {name} --replicas 0",
                    fatal=False,
                )


def _check_pod_security(
    facts: InstallationFacts, objects: Sequence[Manifest], release: ReleaseSettings
) -> Iterator[Problem]:
    policy, _ = PodSecurityPolicy.of_labels(facts.namespace_labels or {})
    for object_ in objects:
        if object_["kind"] != "Deployment":
            continue
        template = object_["spec"]["template"]
        violations = find_violations(template["metadata"], template["spec"], policy.enforce)
        if violations:
            yield Problem(
                f"the namespace {release.namespace} enforces Pod Security {policy.enforce}, which "
                f"the pods of {object_['metadata']['name']} violate: {describe(violations)}",
                "correct podSecurityContext in the values, or change the label of the namespace",
            )


def _check_crd(stored: Manifest, ours: Manifest, keep_crds: bool) -> Problem | None:
    loss = describe_loss(stored, ours)
    if not loss:
        return None
    message = f"the CRD {ours['metadata']['name']} of another installation {loss}"
    if keep_crds:
        return Problem(f"{message}; it is left as it is", fatal=False)
    return Problem(message, "--keep-crds leaves such CRDs as they are")


def _check_owner(stored: Manifest, identity: ObjectIdentity, adopt: bool) -> Problem | None:
    """Objects of Helm, of the API server and of others are not taken over."""
    labels: Mapping[str, str] = stored["metadata"].get("labels") or {}
    annotations: Mapping[str, str] = stored["metadata"].get("annotations") or {}
    if name := annotations.get(HELM_RELEASE):
        namespace = annotations.get(HELM_NAMESPACE, "")
        return Problem(
            f"{identity} belongs to the Helm release {name} in the namespace {namespace}",
            f"helm upgrade {name}, or helm uninstall {name} --namespace {namespace} first",
        )
    if labels.get(PART_OF) == "gangline":
        return None
    if BOOTSTRAPPED in labels:
        return Problem(f"{identity} is of the API server, and left as it is", fatal=False)
    if adopt:
        return None
    return Problem(
        f"{identity} exists, and 'gangline deploy' has not made it",
        "--adopt takes over objects that were made from plain manifests",
    )


def _summarise_refusals(
    refused: Mapping[ObjectIdentity, str], facts: InstallationFacts
) -> Iterator[Problem]:
    """Report each message once; missing rights are named by the check of rights."""
    messages: dict[str, list[ObjectIdentity]] = {}
    for identity, why in refused.items():
        if not (facts.denied and "cannot" in why and "forbidden" in why):
            messages.setdefault(why.replace(identity.name, "NAME"), []).append(identity)
    for same in messages.values():
        first = same[0]
        others = f" (and {len(same) - 1} others)" if len(same) > 1 else ""
        why = refused[first]
        message = why if len(why) <= _MAX_MESSAGE else f"{why[:_MAX_MESSAGE]}…"
        yield Problem(f"the server would refuse {first}{others}: {message}")
