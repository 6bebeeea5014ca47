"""Device matching: which free devices the claims of tentatively placed pods get.

A claim takes the first devices that satisfy its requests and constraints on all nodes of its pods.
If these are taken, the claims that could give them up are assigned again together with it: all that
have a device which one of them may get. So the claims of all pods of a cycle are matched together,
whatever their order. The search is exhaustive within ``MAX_STEPS``; of devices that are equal for
all of these claims it tries one.

Invariant: a device has at most one claim, and the nodes of all of its pods reach it. Requests with
``adminAccess`` are no exception: they get devices, which remain those of other claims.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

from gangline.api.core.devices import MAX_DEVICES
from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.plugins.devices import (
    CANNOT_ALLOCATE,
    DeviceClaimInfo,
    DeviceInfo,
    RequestOption,
    joint_terms,
)
from gangline.scheduler.types import ClaimAllocation, DeviceId, PodInfo, PodKey

MAX_STEPS = 20_000
"""Maximal number of devices that are tried for claims that are assigned together."""
MAX_TOGETHER = 128
"""Maximal number of devices of claims that are assigned together."""
Choice = tuple[tuple[str, DeviceInfo], ...]
"""The chosen devices of a claim, each with the name of its request."""
Candidates = Mapping[str, Sequence[DeviceInfo]]
"""The devices that each option of a claim may get, by its name."""


class DeviceMatching:
    """The matching of a scratch allocation."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes, self._state = nodes, nodes.devices
        self._rows: dict[str, Counter[int]] = {}
        """Rows of the tentatively placed pods of each claim, with the number of pods."""
        self._choices: dict[str, Choice] = {}
        self._claim_of: dict[DeviceId, str] = {}
        """The claims of chosen devices."""
        self._ended: set[PodKey] = set()
        """Running pods that count as ended."""
        self._staying: Set[PodKey] | None = None
        """The running pods that do not count as ended; None: all but ``_ended``."""
        self._awaits_release = False
        """True if claims without users count as free: their devices are about to be released."""
        self._refused: dict[object, set[int]] = defaultdict(set)
        """Rows that have refused a kind of pod; they do so until devices become free."""

    def copy(self) -> "DeviceMatching":
        other = DeviceMatching(self._nodes)
        other._rows = {claim: rows.copy() for claim, rows in self._rows.items()}
        other._choices, other._claim_of = dict(self._choices), dict(self._claim_of)
        other._ended, other._staying = set(self._ended), self._staying
        other._awaits_release = self._awaits_release
        return other

    def concerns(self, pod: PodInfo) -> bool:
        """Return whether a pod has claims that need devices."""
        return bool(pod.device_claims and self._state.unallocated(pod))

    def end_pods(self, pods: Iterable[PodInfo]) -> None:
        """Count running pods as ended: the devices of their claims are free."""
        self._ended.update(pod.key for pod in pods)
        self._awaits_release = True
        self._refused.clear()

    def end_all_but(self, staying: Set[PodKey]) -> None:
        """Count all running pods as ended, except these."""
        self._staying, self._awaits_release = staying, True
        self._refused.clear()

    def chosen_devices(self) -> Mapping[str, ClaimAllocation]:
        """Return the chosen devices by claim."""
        return {
            claim: ClaimAllocation(
                tuple((request, device.id) for request, device in choice),
                joint_terms(device for _, device in choice),
            )
            for claim, choice in self._choices.items()
        }

    def refusal(self, pods: Sequence[PodInfo], row: int) -> str:
        """Return why the claims of these pods cannot have devices on one more row, in Kubernetes'
        wording; empty: they can.
        """
        concerned = list(filter(self.concerns, pods))
        if not concerned:
            return ""
        kinds = tuple(map(self._state.kinds, concerned))
        is_shared = any(key in self._rows for pod in concerned for key in pod.device_claims)
        if not is_shared and row in self._refused[kinds]:
            return CANNOT_ALLOCATE
        added: list[PodInfo] = []
        why = ""
        for pod in concerned:
            added.append(pod)
            if not self._add(pod, row):
                why = CANNOT_ALLOCATE
                break
        for pod in reversed(added):
            self._remove(pod, row)
        if why and not is_shared:
            self._refused[kinds].add(row)
        return why

    def add(self, pod: PodInfo, row: int) -> None:
        """Add a placed pod. Claims of a plan may lack devices: they may be in use."""
        if pod.device_claims:
            self._add(pod, row)

    def remove(self, pod: PodInfo, row: int) -> None:
        if pod.device_claims:
            self._remove(pod, row)
            self._refused.clear()

    def _add(self, pod: PodInfo, row: int) -> bool:
        """Add a pod to its claims; return whether all of them have devices that it reaches."""
        claims = self._state.unallocated(pod)
        for claim in claims:
            self._rows.setdefault(claim.key, Counter())[row] += 1
        return all([self._assign(claim) for claim in claims])

    def _remove(self, pod: PodInfo, row: int) -> None:
        for claim in self._state.unallocated(pod):
            rows = self._rows[claim.key]
            rows[row] -= 1
            if not rows[row]:
                del rows[row]
            if not rows:
                del self._rows[claim.key]
                self._release(claim.key)

    def _take(self, claim: str, choice: Choice) -> None:
        self._choices[claim] = choice
        admin = _admin_options(self._state.claims[claim])
        self._claim_of |= {device.id: claim for name, device in choice if name not in admin}

    def _release(self, claim: str) -> None:
        for _, device in self._choices.pop(claim, ()):
            if self._claim_of.get(device.id) == claim:
                del self._claim_of[device.id]

    def _assign(self, claim: DeviceClaimInfo) -> bool:
        """Assign devices to a claim, which others may have to change; return whether it has some.

        An assignment that fails leaves the others as they are.
        """
        former = self._choices.get(claim.key)
        nodes = [node for row in self._rows[claim.key] if (node := self._nodes.infos[row])]
        has_all = not all(option.count for option in claim.options())
        if former is not None and not has_all:
            reached = (device.is_reached_from(node) for _, device in former for node in nodes)
            if all(reached):
                return True
        self._release(claim.key)
        candidates = {claim.key: self._candidates(claim)}
        found = _Search([claim], candidates, self._free(candidates)).run()
        if found is None and (together := self._competitors(claim, candidates)):
            found = _Search([claim, *together], candidates, self._free(candidates)).run()
        if found is None:
            if former is not None:
                self._take(claim.key, former)
            return False
        for key in found:
            self._release(key)
        for key, choice in found.items():
            self._take(key, choice)
        return True

    def _competitors(
        self, claim: DeviceClaimInfo, candidates: dict[str, Candidates]
    ) -> list[DeviceClaimInfo]:
        """Return the claims that are assigned again with a claim, with their candidates; none if
        there are none, or too many.
        """
        together: list[DeviceClaimInfo] = []
        waiting, count = [claim.key], _count(claim)
        while waiting:
            waits = waiting.pop()
            admin = _admin_options(self._state.claims[waits])
            for name, devices in candidates[waits].items():
                for device in devices if name not in admin else ():
                    key = self._claim_of.get(device.id)
                    if key is None or key in candidates:
                        continue
                    other = self._state.claims[key]
                    count += len(self._choices[key])
                    if count > MAX_TOGETHER:
                        return []
                    candidates[key] = self._candidates(other)
                    together.append(other)
                    waiting.append(key)
        return together

    def _candidates(self, claim: DeviceClaimInfo) -> Candidates:
        """Return the devices that each option of a claim may get on all nodes of its pods.

        All devices are those that any of these nodes reaches, and each of them must reach all.
        """
        nodes = [node for row in self._rows[claim.key] if (node := self._nodes.infos[row])]
        candidates: dict[str, Sequence[DeviceInfo]] = {}
        for option in claim.options():
            on_nodes = [self._state.selected(option.devices, node) for node in nodes]
            joint = [device for device in on_nodes[0] if all(device in on for on in on_nodes[1:])]
            is_partial = not option.count and any(len(on) > len(joint) for on in on_nodes)
            candidates[option.name] = [] if is_partial else joint
        return candidates

    def _free(self, candidates: Mapping[str, Candidates]) -> Set[DeviceId]:
        """Return the candidates that no other claim has."""
        holders = self._state.holders()
        listed = (d.id for options in candidates.values() for ds in options.values() for d in ds)
        return {
            device
            for device in listed
            if self._claim_of.get(device, "") in ("", *candidates)
            and ((holder := holders.get(device)) is None or self._has_ended(holder))
        }

    def _has_ended(self, claim: str) -> bool:
        """Return whether no pod uses the devices of a claim any more."""
        users = list(self._state.placed_users(claim))
        if not users:
            return self._awaits_release
        if self._staying is None:
            return all(pod.key in self._ended for pod in users)
        return all(pod.key not in self._staying or pod.key in self._ended for pod in users)


def _admin_options(claim: DeviceClaimInfo) -> set[str]:
    return {option.name for option in claim.options() if option.is_admin}


def _count(claim: DeviceClaimInfo) -> int:
    return sum(max(1, request.options[0].count) for request in claim.requests)


class _Search:
    """Assigns free devices to claims, to all of them or to none.

    Args:
        candidates: the devices that each option may get, by claim; of other claims, too.
    """

    def __init__(
        self,
        claims: Sequence[DeviceClaimInfo],
        candidates: Mapping[str, Candidates],
        free: Set[DeviceId],
    ) -> None:
        self._claims, self._candidates = claims, candidates
        self._free = set(free)
        self._steps = MAX_STEPS
        self._chosen: dict[str, Choice] = {}
        self._traits: dict[DeviceId, list[object]] = defaultdict(list)
        """What distinguishes devices for these claims."""
        for claim in claims:
            for option, devices in candidates[claim.key].items():
                for device in devices:
                    values = (device.attribute(c.attribute) for c in claim.constraints)
                    self._traits[device.id] += (claim.key, option, *values)

    def run(self) -> Mapping[str, Choice] | None:
        """Return the devices of each claim; None: there is no assignment, or none was found."""
        return self._chosen if self._assign_claim(0) else None

    def _assign_claim(self, index: int) -> bool:
        return index == len(self._claims) or self._assign_request(index, 0, ())

    def _assign_request(self, index: int, number: int, chosen: Choice) -> bool:
        claim = self._claims[index]
        if number == len(claim.requests):
            self._chosen[claim.key] = chosen
            return self._assign_claim(index + 1)
        for option in claim.requests[number].options:
            devices = self._candidates[claim.key][option.name]
            count = option.count or len(devices)
            # Of all devices none may be missing, so there is one choice.
            has_all = devices and (option.is_admin or all(d.id in self._free for d in devices))
            if not option.count and not has_all:
                continue
            if len(chosen) + count <= MAX_DEVICES and self._pick(
                index, number, option, 0, count, chosen
            ):
                return True
        return False

    def _pick(
        self, index: int, number: int, option: RequestOption, start: int, left: int, chosen: Choice
    ) -> bool:
        """Choose the remaining devices of an option among those from ``start`` on."""
        if not left:
            return self._assign_request(index, number + 1, chosen)
        claim = self._claims[index]
        devices = self._candidates[claim.key][option.name]
        tried: list[object] = []
        for at in range(start, len(devices) - left + 1):
            device = devices[at]
            traits = self._traits[device.id]
            is_free = device.id in self._free
            if not (is_free or option.is_admin) or traits in tried:
                continue
            if not _satisfies(claim, option.name, device, chosen):
                continue
            if not self._steps:
                return False
            self._steps -= 1
            tried.append(traits)
            if not option.is_admin:
                self._free.discard(device.id)
            further = (*chosen, (option.name, device))
            if self._pick(index, number, option, at + 1, left - 1, further):
                return True
            if is_free:
                self._free.add(device.id)
        return False


def _satisfies(claim: DeviceClaimInfo, option: str, device: DeviceInfo, chosen: Choice) -> bool:
    """Return whether a device satisfies the constraints of a claim beside the chosen ones."""
    for constraint in claim.constraints:
        if not constraint.applies_to(option):
            continue
        value = device.attribute(constraint.attribute)
        if value is None:
            return False
        others = [
            other.attribute(constraint.attribute)
            for name, other in chosen
            if constraint.applies_to(name)
        ]
        if constraint.distinct and value in others:
            return False
        if not constraint.distinct and any(value != other for other in others):
            return False
    return True
