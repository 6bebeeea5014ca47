"""Volume matching: which free volumes the claims of tentatively placed pods get.

Claims and volumes are a bipartite graph. A claim has an edge to each volume that it may get
(``StorageState.candidates``) and that the nodes of all of its pods reach. A pod is placed on a node
only if the matching can be extended by its claims: by a free volume, the smallest first; else by a
volume that is provisioned for the node; else along an augmenting path, which gives other claims
other volumes. So the claims of all pods of a cycle are matched together, whatever their order.

A claim that several pods share is matched once. A volume that is provisioned for it is expected on
one node only, unless its access modes are for several. A ReadWriteOncePod claim has one pod.
Volumes that are provisioned from one published capacity are added up.

Invariant: a volume has at most one claim, and the nodes of all of its pods reach it.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import numpy as np

from gangline.scheduler.cache.node_table import Mask, NodeTable
from gangline.scheduler.plugins.volumes import (
    CLAIM_IN_USE,
    VOLUME_AFFINITY_CONFLICT,
    ClaimInfo,
    VolumeInfo,
)
from gangline.scheduler.types import PodInfo, PodKey

PROVISIONED = ""
"""In place of the name of a volume: one is provisioned."""
_REMEMBERED = 4
"""Number of lists of volumes that a search remembers: there are many claims, but few kinds."""


class VolumeMatching:
    """The matching of a scratch allocation."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes, self._storage = nodes, nodes.storage
        self._rows: dict[str, Counter[int]] = {}
        """Rows of the tentatively placed pods of each claim, with the number of pods."""
        self._volume_of: dict[str, str] = {}
        self._claim_of: dict[str, str] = {}
        """The claims of matched volumes."""
        self._source_of: dict[str, str] = {}
        """The capacities of claims for which a volume is provisioned, as far as these are added up.
        """
        self._taken: Counter[str] | None = None
        """Bytes that are taken from each capacity; None: nothing was asked for yet."""
        self._ended: set[PodKey] = set()
        """Running pods that count as ended."""
        self._staying: Set[PodKey] | None = None
        """The running pods that do not count as ended; None: all but ``_ended``."""
        self._held: dict[str, bool] = {}
        """Whether a running pod uses a ReadWriteOncePod claim, as far as it was asked."""
        self._options: dict[int, _OptionsByRow] = {}
        """The volumes of each list of candidates by row, by the identity of the list."""

    def copy(self) -> "VolumeMatching":
        other = VolumeMatching(self._nodes)
        other._rows = {claim: rows.copy() for claim, rows in self._rows.items()}
        other._volume_of, other._claim_of = dict(self._volume_of), dict(self._claim_of)
        other._source_of = dict(self._source_of)
        other._taken = self._taken.copy() if self._taken is not None else None
        other._ended, other._staying = set(self._ended), self._staying
        other._options = self._options
        return other

    def concerns(self, pod: PodInfo) -> bool:
        """Return whether a pod has claims whose volumes depend on other pods."""
        return bool(pod.claims and self._storage.matched_claims(pod.claims))

    def claims_of(self, pod: PodInfo) -> list[str]:
        """Return the keys of these claims."""
        return [claim.key for claim in self._storage.matched_claims(pod.claims)]

    def compete(self, pod: PodInfo, other: PodInfo, accepted: Mask) -> bool:
        """Return whether a placed pod has a volume that another pod could have on these rows."""
        volumes = {self._volume_of.get(key) for key in other.claims}
        return any(
            volume.terms is None
            or any(accepted[row] for row in self._nodes.rows_matching(volume.terms))
            for claim in self._storage.matched_claims(pod.claims)
            for volume in self._storage.candidates(claim)
            if volume.name in volumes
        )

    def end_pods(self, pods: Iterable[PodInfo]) -> None:
        """Count running pods as ended: their ReadWriteOncePod claims are free."""
        self._ended.update(pod.key for pod in pods if pod.claims)
        self._held.clear()

    def end_all_but(self, staying: Set[PodKey]) -> None:
        """Count all running pods as ended, except these."""
        self._staying = staying
        self._held.clear()

    def chosen_volumes(self) -> Mapping[str, str]:
        """Return the names of the chosen volumes by claim, without those to be provisioned."""
        return {claim: name for claim, name in self._volume_of.items() if name != PROVISIONED}

    def holders(self, pod: PodInfo) -> list[PodInfo]:
        """Return the running pods that keep a pod from its ReadWriteOncePod claims."""
        if not pod.claims:
            return []
        claims = {c.key for c in self._storage.matched_claims(pod.claims) if c.is_for_one_pod}
        nodes = self._storage.users_by_node.items() if claims else ()
        return [
            other
            for node, users in nodes
            if not claims.isdisjoint(users)
            for other in self._nodes.pods_by_node.get(node, {}).values()
            if not claims.isdisjoint(other.claims) and self._stays(other)
        ]

    def _stays(self, pod: PodInfo) -> bool:
        is_staying = self._staying is None or pod.key in self._staying
        return is_staying and pod.key not in self._ended

    def is_in_use(self, pod: PodInfo) -> bool:
        """Return whether another pod uses a ReadWriteOncePod claim of a pod."""
        for claim in self._storage.matched_claims(pod.claims):
            if claim.is_for_one_pod:
                if claim.key not in self._held:
                    self._held[claim.key] = bool(self.holders(pod))
                if self._held[claim.key] or claim.key in self._rows:
                    return True
        return False

    def rows_with_free(self, pods: Sequence[PodInfo]) -> Mask:
        """Return the rows with a free volume for each claim that none can be provisioned for."""
        mask: Mask = np.ones(len(self._nodes.infos), dtype=bool)
        for pod in pods:
            for claim in self._storage.matched_claims(pod.claims):
                if self._storage.can_provision(claim) or claim.key in self._rows:
                    continue
                free = [v for v in self._storage.candidates(claim) if v.name not in self._claim_of]
                if not any(volume.terms is None for volume in free):
                    reached = np.zeros(len(mask), dtype=bool)
                    for volume in free:
                        reached[list(self._nodes.rows_matching(volume.terms or ()))] = True
                    mask &= reached
        return mask

    def refusals(self, pods: Sequence[PodInfo], rows: Iterable[int]) -> Iterator[tuple[int, str]]:
        """Yield ``refusal`` for each row; it is computed once for equal rows."""
        computed: dict[object, str] = {}
        for row in rows:
            key = self._equal_rows_key(pods, row)
            if key is None or key not in computed:
                computed[key] = self.refusal(pods, row)
            yield row, computed[key]

    def _equal_rows_key(self, pods: Sequence[PodInfo], row: int) -> object:
        """Return a key of the volumes that these pods could have on a row; None: they share claims
        with placed pods, so that other rows matter.
        """
        key: list[object] = []
        node = self._nodes.infos[row]
        for pod in pods:
            for claim in self._storage.matched_claims(pod.claims):
                if node is None or claim.key in self._rows:
                    return None
                provisioned = self._storage.may_provision(claim, node) and self._source(claim, row)
                key += (id(self._options_on(claim, row)), provisioned)
        return tuple(key)

    def could_all_be_matched(self, pods: Iterable[PodInfo]) -> bool:
        """Return whether the claims of pods, and those that are matched, could all have volumes,
        wherever the pods are placed.
        """
        relaxed = VolumeMatching(self._nodes)
        claims = {key: self._storage.claims[key] for key in self._rows}
        claims |= {c.key: c for pod in pods for c in self._storage.matched_claims(pod.claims)}
        return all(
            relaxed._augment(claim)
            for claim in claims.values()
            if self._storage.needs_volume(claim) and not self._storage.can_provision(claim)
        )

    def refusal(self, pods: Sequence[PodInfo], row: int) -> str:
        """Return why these pods cannot have their volumes on one more row, in Kubernetes' wording;
        empty: they can.
        """
        added: list[PodInfo] = []
        why = ""
        for pod in filter(self.concerns, pods):
            if why := self._try(pod, row):
                break
            added.append(pod)
        for pod in added:
            self.remove(pod, row)
        return why

    def _try(self, pod: PodInfo, row: int) -> str:
        """Add a pod if all of its claims can be matched; else return why they cannot."""
        if self.is_in_use(pod):
            return CLAIM_IN_USE
        claims = self._storage.matched_claims(pod.claims)
        for count, claim in enumerate(claims, 1):
            if not self._add_row(claim, row):
                is_shared = len(self._rows[claim.key]) > 1
                for added in claims[:count]:
                    self._remove_row(added.key, row)
                if is_shared:
                    return VOLUME_AFFINITY_CONFLICT
                return self._storage.no_volume_message(claim)
        return ""

    def add(self, pod: PodInfo, row: int) -> None:
        """Add a placed pod. Claims of a plan may lack a volume: it may not exist yet."""
        for claim in self._storage.matched_claims(pod.claims):
            self._add_row(claim, row)

    def remove(self, pod: PodInfo, row: int) -> None:
        for claim in self._storage.matched_claims(pod.claims):
            self._remove_row(claim.key, row)

    def _add_row(self, claim: ClaimInfo, row: int) -> bool:
        """Add a pod on a row to a claim; return whether the claim has a volume that it reaches."""
        self._rows.setdefault(claim.key, Counter())[row] += 1
        if not self._storage.needs_volume(claim):
            return True
        former = self._volume_of.get(claim.key)
        if former is not None and self._may_have(claim, former):
            return True
        self._release(claim.key)
        is_matched = self._augment(claim)
        if not is_matched and former is not None:
            self._take(claim.key, former)
        return is_matched

    def _remove_row(self, claim: str, row: int) -> None:
        rows = self._rows[claim]
        rows[row] -= 1
        if not rows[row]:
            del rows[row]
        if not rows:
            del self._rows[claim]
            self._release(claim)

    def _take(self, claim: str, volume: str) -> None:
        self._volume_of[claim] = volume
        if volume != PROVISIONED:
            self._claim_of[volume] = claim
            return
        info = self._storage.claims[claim]
        if source := self._source(info, next(iter(self._rows[claim]))):
            self._source_of[claim] = source
            self._bytes_taken()[source] += info.size

    def _release(self, claim: str) -> None:
        self._claim_of.pop(self._volume_of.pop(claim, PROVISIONED), None)
        if source := self._source_of.pop(claim, None):
            self._bytes_taken()[source] -= self._storage.claims[claim].size

    def _source(self, claim: ClaimInfo, row: int) -> str | None:
        """Return the capacity from which a volume may be provisioned for a row; empty: it is not
        limited; None: nothing has enough left.
        """
        node = self._nodes.infos[row]
        if node is None or not self._storage.is_limited(claim):
            return ""
        sources = self._storage.capacity_sources(claim, node)
        if not sources or None in sources.values():
            return ""  # the terms of the nodes decide
        taken = self._bytes_taken()
        enough = (n for n, total in sources.items() if taken[n] + claim.size <= (total or 0))
        return next(enough, None)

    def _bytes_taken(self) -> Counter[str]:
        """Return the bytes that are taken from each capacity, first by bindings in flight."""
        if self._taken is None:
            taken = self._taken = Counter()
            for key, assumed in self._storage.assumed.items():
                claim, row = self._storage.claims.get(key), self._nodes.rows.get(assumed.node)
                if claim is None or claim.volume or assumed.volume or row is None:
                    continue
                if source := self._source(claim, row):
                    taken[source] += claim.size
        return self._taken

    def _may_have(self, claim: ClaimInfo, volume: str) -> bool:
        if volume == PROVISIONED:
            return self._may_provision(claim)
        return self._is_reached(self._storage.volumes[volume], claim)

    def _is_reached(self, volume: VolumeInfo, claim: ClaimInfo) -> bool:
        """Return whether the nodes of all pods of a claim reach a volume."""
        terms = volume.terms
        return terms is None or self._rows[claim.key].keys() <= self._nodes.rows_matching(terms)

    def _options_of(self, claim: ClaimInfo) -> Sequence[VolumeInfo]:
        """Return the volumes that a claim may have on the rows of its pods, the smallest first."""
        rows = self._rows.get(claim.key)
        if rows is None:
            return self._storage.candidates(claim)
        options = self._options_on(claim, next(iter(rows)))
        if len(rows) > 1:
            return [volume for volume in options if self._is_reached(volume, claim)]
        return options

    def _options_on(self, claim: ClaimInfo, row: int) -> Sequence[VolumeInfo]:
        candidates = self._storage.candidates(claim)
        options = self._options.get(id(candidates))
        if options is None:
            options = self._options[id(candidates)] = _OptionsByRow(self._nodes, candidates)
        return options.on(row)

    def _may_provision(self, claim: ClaimInfo) -> bool:
        if not self._storage.can_provision(claim):
            return False
        rows = self._rows.get(claim.key, ())
        if len(rows) > 1 and not claim.is_for_many_nodes:
            return False
        if (
            rows
            and claim.key not in self._source_of
            and self._source(claim, next(iter(rows))) is None
        ):
            return False
        nodes = (self._nodes.infos[row] for row in rows)
        return all(n is not None and self._storage.may_provision(claim, n) for n in nodes)

    def _augment(self, claim: ClaimInfo) -> bool:
        """Match a claim along the shortest augmenting path; return whether there is one.

        A path that fails leaves the matching as it is.
        """
        waiting = deque([claim])
        asked_by: dict[str, str] = {}
        """The claim that would take a volume from its present claim."""
        searched: list[Sequence[VolumeInfo]] = []
        while waiting:
            current = waiting.popleft()
            options = self._options_of(current)
            # Claims on equal rows share the list: each would search all of it in vain.
            is_new = not any(options is other for other in searched)
            searched[_REMEMBERED:] = [options]
            for volume in options if is_new else ():
                if volume.name in asked_by:
                    continue
                asked_by[volume.name] = current.key
                owner = self._claim_of.get(volume.name)
                if owner is None:
                    self._move_along(volume.name, current.key, claim.key, asked_by)
                    return True
                waiting.append(self._storage.claims[owner])
            if self._may_provision(current):
                self._move_along(PROVISIONED, current.key, claim.key, asked_by)
                return True
        return False

    def _move_along(self, volume: str, claim: str, first: str, asked_by: Mapping[str, str]) -> None:
        """Give a volume to a claim, the one that it had to the claim that asked for it, and so on
        up to the first claim.
        """
        while True:
            former = self._volume_of.get(claim, PROVISIONED)
            self._take(claim, volume)
            if claim == first:
                return
            volume, claim = former, asked_by[former]


class _OptionsByRow:
    """Candidates for a claim by row: local volumes are on one of thousands of rows each."""

    def __init__(self, nodes: NodeTable, candidates: Sequence[VolumeInfo]) -> None:
        self._candidates = candidates
        """Kept: the identity of the list is in use."""
        self._everywhere = [volume for volume in candidates if volume.terms is None]
        self._on: dict[int, list[VolumeInfo]] = {}
        for volume in candidates:
            for row in nodes.rows_matching(volume.terms) if volume.terms is not None else ():
                self._on.setdefault(row, []).append(volume)
        if self._everywhere:
            for on_row in self._on.values():
                on_row.extend(self._everywhere)
                on_row.sort(key=lambda volume: (volume.size, volume.name))

    def on(self, row: int) -> Sequence[VolumeInfo]:
        """Return the volumes that a row reaches, the smallest first."""
        return self._on.get(row, self._everywhere)
