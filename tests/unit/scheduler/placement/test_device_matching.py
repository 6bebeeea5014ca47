"""Devices of claims: a gang starts if and only if an exhaustive search finds devices for it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from random import Random

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import CycleResult
from unit.scheduler.builders import checked_cycle, cluster, group, node, placed
from unit.scheduler.device_builders import (
    DRIVER,
    Json,
    add_claim,
    add_class,
    add_slice,
    device,
    request,
    user,
)

FIRST_SEED, INSTANCES = 430, 60
"""Among these are instances in which a claim must give a device up for another one."""
MATCH = {"matchAttribute": f"{DRIVER}/numa"}
DISTINCT = {"distinctAttribute": f"{DRIVER}/numa"}


@dataclass(frozen=True)
class Gpu:
    node: str
    """Empty: all nodes reach it."""
    name: str
    model: str
    numa: int
    taint: str

    @property
    def id(self) -> tuple[str, str]:
        return (self.node or "fabric", self.name)


@dataclass(frozen=True)
class Wanted:
    """A request: of some model, or of any (empty); count 0 is all of them."""

    count: int
    model: str
    tolerant: bool
    admin: bool
    """Devices that others have do as well, and stay theirs."""

    def may_have(self, gpu: Gpu) -> bool:
        return self.model in ("", gpu.model) and (self.tolerant or not gpu.taint)

    def manifest(self, name: str) -> Json:
        fields: Json = {"allocationMode": "All"} if not self.count else {"count": self.count}
        if self.model:
            expression = f'device.attributes["{DRIVER}"].model == "{self.model}"'
            fields["selectors"] = [{"cel": {"expression": expression}}]
        if self.admin:
            fields["adminAccess"] = True
        if self.tolerant:
            fields["tolerations"] = [{"key": "broken", "operator": "Exists"}]
        return request(name, **fields)


@dataclass(frozen=True)
class Claim:
    wanted: tuple[Wanted, ...]
    constraint: str
    """``match``, ``distinct`` or empty."""

    def choices(
        self, gpus: list[Gpu], free: frozenset[Gpu], nodes: set[str]
    ) -> Iterator[tuple[frozenset[Gpu], frozenset[Gpu]]]:
        """Yield the devices that it could get if its pods are on these nodes, and of these the ones
        that it takes from others.
        """

        def of(wanted: Wanted) -> Iterator[tuple[Gpu, ...]]:
            near = [g for g in gpus if wanted.may_have(g) and (not g.node or g.node in nodes)]
            joint = [gpu for gpu in near if not gpu.node or {gpu.node} == nodes]
            may_have = frozenset(gpus) if wanted.admin else free
            if not wanted.count and near and near == joint and may_have.issuperset(near):
                yield tuple(near)
            elif wanted.count:
                yield from combinations([gpu for gpu in joint if gpu in may_have], wanted.count)

        for parts in product(*map(of, self.wanted)):
            together = [gpu for part in parts for gpu in part]
            numa = [gpu.numa for gpu in together]
            taken = [gpu for part, wanted in zip(parts, self.wanted, strict=True)
                     for gpu in part if not wanted.admin]  # fmt: skip
            differ = len(set(taken)) == len(taken)
            if self.constraint == "match":
                differ = differ and len(set(numa)) <= 1
            if self.constraint == "distinct":
                differ = differ and len(set(numa)) == len(numa)
            if differ:
                yield frozenset(together), frozenset(taken)


@dataclass(frozen=True)
class Instance:
    nodes: Mapping[str, int]
    """Processors by node."""
    gpus: list[Gpu]
    held: frozenset[Gpu]
    claims: list[Claim]
    users: list[tuple[int, ...]]
    """The claims of each pod."""

    def is_feasible(self) -> bool:
        """Try all placements of the pods, and all devices for their claims."""
        for names in product(self.nodes, repeat=len(self.users)):
            if any(names.count(name) > cpu for name, cpu in self.nodes.items()):
                continue
            where = [{names[i] for i, own in enumerate(self.users) if index in own}
                     for index in range(len(self.claims))]  # fmt: skip
            if self._assign(0, where, frozenset(self.gpus) - self.held):
                return True
        return False

    def _assign(self, index: int, where: list[set[str]], free: frozenset[Gpu]) -> bool:
        if index == len(self.claims):
            return True
        choices = self.claims[index].choices(self.gpus, free, where[index])
        return any(self._assign(index + 1, where, free - taken) for _, taken in choices)

    def state(self) -> SchedulerCache:
        state = cluster(*(node(name, cpu=cpu) for name, cpu in self.nodes.items()))
        add_class(state)
        pools: dict[str, list[Json]] = {name: [] for name in ("fabric", *self.nodes)}
        for gpu in self.gpus:
            made = device(gpu.name, gpu.taint, model=gpu.model, numa=gpu.numa)
            pools[gpu.id[0]].append(made)
        for name, devices in pools.items():
            add_slice(state, name, devices, **({"allNodes": True} if name == "fabric" else {}))
        for number, gpu in enumerate(sorted(self.held, key=lambda gpu: gpu.id)):
            add_claim(state, f"held-{number}", has=[gpu.id], by=["other"])
        shared = {n for own in self.users for n in own if sum(n in o for o in self.users) > 1}
        for number, claim in enumerate(self.claims):
            owner = next(i for i, own in enumerate(self.users) if number in own)
            add_claim(
                state,
                f"c{number}",
                *(wanted.manifest(f"r{n}") for n, wanted in enumerate(claim.wanted)),
                constraints=[{"match": MATCH, "distinct": DISTINCT}[claim.constraint]]
                if claim.constraint
                else [],
                owner="" if number in shared else f"p{owner}",
            )
        state.set_group(group("g", len(self.users)))
        for number, own in enumerate(self.users):
            state.set_pod(user(f"p{number}", *(f"c{claim}" for claim in own), group="g"))
        return state


def instance(random: Random) -> Instance:
    nodes = {f"n{index}": random.randint(1, 3) for index in range(random.randint(1, 2))}
    gpus = [
        Gpu(
            name,
            f"gpu-{index}",
            random.choice("ab"),
            random.randint(0, 1),
            random.choice(["", "", "", "", "NoSchedule"]),
        )
        for name in (*nodes, "")
        for index in range(random.randint(1, 4) if name else random.randint(0, 1))
    ]
    held = frozenset(gpu for gpu in gpus if random.random() < 0.1)
    kinds = [
        Claim(
            tuple(
                Wanted(random.choice([0, 1, 1, 1, 1, 2]), random.choice(["", "", "a", "b"]),
                       random.random() < 0.3, random.random() < 0.1)
                for _ in range(random.choice([1, 1, 2]))
            ),
            random.choice(["", "", "", "match", "distinct"]),
        )
        for _ in range(random.randint(2, 3))
    ]  # fmt: skip
    pods = random.randint(1, 4)
    users: list[tuple[int, ...]] = [(index,) for index in range(pods)]
    claims = [random.choice(kinds) for _ in users]
    if pods > 1 and random.random() < 0.3:
        users[1] = (0,)
        users = [tuple(n - (n > 1) for n in own) for own in users]
        del claims[1]
    return Instance(nodes, gpus, held, claims, users)


def check_devices(case: Instance, result: CycleResult) -> None:
    """Check that each claim has devices that it may have, and no device has two claims."""
    nodes = placed(result)
    by_id = {(DRIVER, *gpu.id): gpu for gpu in case.gpus}
    free = frozenset(case.gpus) - case.held
    for number, claim in enumerate(case.claims):
        chosen = frozenset(by_id[own] for _, own in result.devices[f"d/c{number}"].devices)
        where = {nodes[f"p{index}"] for index, own in enumerate(case.users) if number in own}
        options = dict(claim.choices(case.gpus, free, where))
        assert chosen in options, (number, chosen)
        free -= options[chosen]


def test_gang_starts_if_and_only_if_some_assignment_of_devices_exists() -> None:
    outcomes = set()
    for seed in range(FIRST_SEED, FIRST_SEED + INSTANCES):
        case = instance(Random(seed))
        result = checked_cycle(case.state())
        started = len(result.bindings) == len(case.users)
        assert started == case.is_feasible(), (seed, case)
        assert started or not result.bindings
        if started:
            check_devices(case, result)
        outcomes.add(started)
    assert outcomes == {True, False}
