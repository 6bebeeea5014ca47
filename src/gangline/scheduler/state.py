"""The observed cluster: nodes as arrays, pods by node and by gang, groups and queues.

Kept incrementally: each change costs what it concerns. A pod that was decided but whose binding
the API server has not confirmed is *assumed*: it counts where it is going, so that the next
decision does not give its room away.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

from gangline.scheduler.model import (
    GroupFacts,
    GroupKey,
    NodeFacts,
    NodeName,
    PodFacts,
    PodKey,
    QueueFacts,
)
from gangline.scheduler.nodes import NodeTable


@dataclass(frozen=True, slots=True)
class Vacancy:
    """A member that a gang has lost, on the node where it was."""

    pod: PodFacts
    at: float
    """When, on the clock of whoever keeps the state (seconds)."""


class ClusterState:
    """What is known now. Only the shell and tests change it; decisions read it."""

    def __init__(self) -> None:
        self.nodes = NodeTable()
        self.pods: dict[PodKey, PodFacts] = {}
        self.waiting: dict[PodKey, PodFacts] = {}
        """Pods that are for this scheduler to place."""
        self.members: dict[GroupKey, dict[PodKey, PodFacts]] = defaultdict(dict)
        self.groups: dict[GroupKey, GroupFacts] = {}
        self.restarting: set[GroupKey] = set()
        """Groups that announce places to be kept."""
        self.queues: dict[str, QueueFacts] = {}
        self.vacated: dict[GroupKey, list[Vacancy]] = defaultdict(list)
        """Members that left their nodes without having succeeded, by their gang."""
        self.former: dict[GroupKey, dict[PodKey, PodFacts]] = defaultdict(dict)
        """Members of existing groups that had a node and are gone, the latest of each name: what
        one of that name will ask for when it is made anew."""
        self._on_node: dict[NodeName, dict[PodKey, PodFacts]] = defaultdict(dict)
        self._assumed: dict[PodKey, NodeName] = {}

    def set_node(self, node: NodeFacts) -> None:
        """Add or change a node; pods that were already seen on it are counted."""
        known = node.name in self.nodes.rows
        self.nodes.set(node)
        if not known:
            for pod in self._on_node.get(node.name, {}).values():
                self.nodes.occupy(pod)

    def remove_node(self, name: NodeName) -> None:
        """Forget a node. Its pods stay known, should it come back."""
        self.nodes.remove(name)

    def set_pod(self, pod: PodFacts) -> None:
        """Add or change a pod. A pod of the same name but another uid replaces the old one."""
        known = self.pods.get(pod.key)
        assumed = self._assumed.get(pod.key)
        if known is not None and assumed is not None:
            if known.uid == pod.uid and pod.node is None:
                # What arrives may be older than the binding: until the API server shows a node,
                # what was decided holds.
                pod = replace(pod, node=assumed)
            else:
                del self._assumed[pod.key]
        if known is not None:
            self._forget(known)
        self._remember(pod)

    def remove_pod(self, key: PodKey) -> None:
        """Forget a pod that is gone."""
        self._assumed.pop(key, None)
        known = self.pods.get(key)
        if known is not None:
            self._forget(known)
            if known.group is not None and known.group in self.groups and known.node is not None:
                self.former[known.group][key] = known

    def set_group(self, group: GroupFacts) -> None:
        """Add or change a group."""
        self.groups[group.key] = group
        if group.places is not None:
            self.restarting.add(group.key)
        else:
            self.restarting.discard(group.key)

    def remove_group(self, key: GroupKey) -> None:
        """Forget a group and the members that it had. Pods that name it stay known."""
        self.groups.pop(key, None)
        self.restarting.discard(key)
        self.vacated.pop(key, None)
        self.former.pop(key, None)

    def vacate(self, pod: PodFacts, at: float, keep_s: float) -> None:
        """Note that a member of a gang is gone from its node; forget those of long ago."""
        if pod.group is not None:
            recent = [lost for lost in self.vacated[pod.group] if at - lost.at < keep_s]
            self.vacated[pod.group] = [*recent, Vacancy(pod, at)]

    def assume(self, key: PodKey, node: NodeName) -> None:
        """Count a pod on the node it is being bound to."""
        pod = self.pods[key]
        self._forget(pod)
        self._assumed[key] = node
        self._remember(replace(pod, node=node))

    def unassume(self, key: PodKey, uid: str) -> None:
        """Take an assumption back: the binding has failed, the pod waits again."""
        pod = self.pods.get(key)
        if pod is None or pod.uid != uid or self._assumed.pop(key, None) is None:
            return
        self._forget(pod)
        self._remember(replace(pod, node=None))

    def is_assumed(self, key: PodKey) -> bool:
        """Say whether a pod's binding is under way."""
        return key in self._assumed

    def _remember(self, pod: PodFacts) -> None:
        self.pods[pod.key] = pod
        if pod.waits:
            self.waiting[pod.key] = pod
            # Resources that are new get their columns now: a decision changes no array.
            self.nodes.demand(pod.shape.request)
        if pod.group is not None:
            self.members[pod.group][pod.key] = pod
        if pod.holds_room and pod.node is not None:
            self._on_node[pod.node][pod.key] = pod
            self.nodes.occupy(pod)

    def _forget(self, pod: PodFacts) -> None:
        del self.pods[pod.key]
        self.waiting.pop(pod.key, None)
        if pod.group is not None:
            members = self.members[pod.group]
            members.pop(pod.key, None)
            if not members:
                del self.members[pod.group]
        if pod.holds_room and pod.node is not None:
            self._on_node[pod.node].pop(pod.key, None)
            if not self._on_node[pod.node]:
                del self._on_node[pod.node]
            self.nodes.occupy(pod, -1)
