"""Coordinates the checks of a job, whose nodes may leave and return: a state machine with a clock.

Nodes gather until all have joined, or the minimum has joined and no more joined for the last-call
time. Nodes that passed an earlier check and train now count as present, so that a replaced node is
checked with the waiting ones, alone if there are none. The master runs it but does not persist it:
after a restart of the master nodes start the check again (``UnknownCheckError``).
"""

from collections import deque
from dataclasses import dataclass, field

from gangline.elastic.nodecheck.group_testing import CheckRules, choose_next_step, first_groups
from gangline.elastic.nodecheck.result import (
    LOST_RESULT,
    CheckConclusion,
    CheckOutcome,
    CheckRound,
    NodeGroup,
    NodeResult,
    NodeTimes,
    SpeedLimits,
    best_times,
    check_outcomes,
)
from gangline.elastic.protocol.messages import (
    CheckGroup,
    CheckMember,
    CheckRequest,
    CheckResult,
    CheckVerdict,
)

ROUND_TIMEOUT_S = 300.0
"""A node that has not reported by then is lost. The nodes' own limits are shorter."""

HISTORY_LENGTH = 5
"""Number of earlier checks of each node that are used for comparison."""

MAX_VERDICTS = 4096

ParticipantKey = tuple[int, str, int]
"""Node, incarnation and number of the check: one process's part in one check."""


class UnknownCheckError(Exception):
    """A result belongs to a check that is unknown here: the node must start again."""


@dataclass(slots=True)
class _Participant:
    request: CheckRequest
    port: int
    is_lost: bool = False

    @property
    def key(self) -> ParticipantKey:
        return _key(self.request)


@dataclass(slots=True)
class _Session:
    nodes: dict[int, _Participant]
    rules: CheckRules
    groups: tuple[NodeGroup, ...]
    rounds: list[CheckRound] = field(default_factory=list)
    results: dict[int, NodeResult] = field(default_factory=dict)
    deadline: float = 0.0


class CheckCoordinator:
    """All checks of one job, one after the other."""

    def __init__(self, round_timeout_s: float = ROUND_TIMEOUT_S) -> None:
        self._round_timeout_s = round_timeout_s
        self._waiting: dict[int, _Participant] = {}
        self._last_call: float | None = None
        self._session: _Session | None = None
        self._trusted: set[int] = set()
        self._history: dict[int, deque[NodeTimes]] = {}
        self._verdicts: dict[ParticipantKey, CheckConclusion] = {}
        self.outcomes: dict[int, CheckOutcome] = {}
        self.ended = 0

    def receive(self, message: CheckRequest | CheckResult, now: float) -> None:
        """Process a request or a result; repetitions change nothing.

        Raises UnknownCheckError: a result of a check that this coordinator never began.
        """
        if isinstance(message, CheckRequest):
            self._add_participant(message, now)
        else:
            self._add_result(message, now)

    def answer(self, message: CheckRequest | CheckResult) -> CheckGroup | CheckVerdict | None:
        """Return the next message to a node; None while it must wait."""
        key, session = _key(message), self._session
        if (verdict := self._verdicts.get(key)) is not None:
            return _verdict_message(key[0], verdict)
        if session is None or not self._is_participant(session, key):
            return None
        group = next((group for group in session.groups if key[0] in group), None)
        if group is None or key[0] in session.results or _is_testing_in(message, session):
            return None
        hosts = [session.nodes[node].request.host for node in group]
        return CheckGroup(
            round=len(session.rounds),
            members=tuple(map(CheckMember, group, range(len(group)), hosts)),
            store_host=hosts[0],
            store_port=session.nodes[group[0]].port,
        )

    def is_test_obsolete(self, message: CheckRequest | CheckResult) -> bool:
        """True if a node of the running test group is lost, or has failed within itself."""
        key, session = _key(message), self._session
        if session is None or not self._is_participant(session, key):
            return False
        if not _is_testing_in(message, session) or key[0] in session.results:
            return False
        group = next((group for group in session.groups if key[0] in group), ())
        failed = {
            other for other, result in session.results.items() if not result.passed and result.local
        }
        return any(session.nodes[node].is_lost or node in failed for node in group)

    @property
    def deadline(self) -> float | None:
        """Time of the next ``tick``; None if none is needed."""
        if self._session is not None:
            return self._session.deadline
        return self._last_call

    def tick(self, now: float) -> None:
        session = self._session
        if session is not None:
            if now >= session.deadline:
                for node in self._missing(session):
                    session.nodes[node].is_lost = True
                self._advance(session, now)
        elif self._last_call is not None and now >= self._last_call:
            self._begin_session(now)

    def remove_node(self, node: int, now: float) -> None:
        self._trusted.discard(node)
        if self._waiting.pop(node, None) is not None:
            self._begin_or_wait(now)
        session = self._session
        if session is not None and node in session.nodes:
            session.nodes[node].is_lost = True
            self._advance(session, now)

    def _add_participant(self, request: CheckRequest, now: float) -> None:
        key, node = _key(request), request.node_id
        waiting, session = self._waiting.get(node), self._session
        is_repeated = waiting is not None and waiting.key == key
        if is_repeated or key in self._verdicts or (session and self._is_participant(session, key)):
            return
        self._waiting[node] = _Participant(request, request.store_port)
        self._trusted.discard(node)
        if session is not None and node in session.nodes:
            session.nodes[node].is_lost = True  # another process has replaced this one
            self._advance(session, now)
        if self._session is None:
            self._begin_or_wait(now)

    def _begin_or_wait(self, now: float) -> None:
        """Begin a check, or set the end of the last call."""
        self._last_call = None
        if self._session is not None or not self._waiting:
            return
        requests = [participant.request for participant in self._waiting.values()]
        if len(requests) >= max(request.nodes for request in requests):
            self._begin_session(now)
        elif len(requests) + len(self._trusted) >= max(request.min_nodes for request in requests):
            self._last_call = now + max(request.last_call_s for request in requests)

    def _begin_session(self, now: float) -> None:
        self._last_call = None
        nodes = dict(sorted(self._waiting.items(), key=lambda item: _sort_key(item[1].request)))
        self._waiting = {}
        requests = [participant.request for participant in nodes.values()]
        default = SpeedLimits()
        limits = SpeedLimits(
            ratio=max(request.straggler_ratio for request in requests) or default.ratio,
            absolute_s=max(request.straggler_s for request in requests),
        )
        rules = CheckRules(limits, all_together=any(request.all_together for request in requests))
        groups = first_groups([*nodes])
        self._session = _Session(nodes, rules, groups, deadline=now + self._round_timeout_s)

    def _add_result(self, result: CheckResult, now: float) -> None:
        key, session = _key(result), self._session
        if session is not None and self._is_participant(session, key):
            if result.round == len(session.rounds) and key[0] in self._missing(session):
                session.results[key[0]] = _node_result(result)
                session.nodes[key[0]].port = result.store_port
                self._advance(session, now)
        elif key not in self._verdicts:
            waiting = self._waiting.get(key[0])
            if waiting is None or waiting.key != key:
                raise UnknownCheckError(f"no check of node {key[0]} is running here")
            waiting.port = result.store_port

    def _advance(self, session: _Session, now: float) -> None:
        """Close the round when all missing nodes are lost; begin the next one, or end the check."""
        while all(session.nodes[node].is_lost for node in self._missing(session)):
            silent = dict.fromkeys(self._missing(session), LOST_RESULT)
            session.rounds.append(CheckRound(session.groups, session.results | silent))
            session.results = {}
            session.deadline = now + self._round_timeout_s
            gone = {node for node, participant in session.nodes.items() if participant.is_lost}
            step = choose_next_step(
                [*session.nodes], session.rounds, session.rules, self._history, gone
            )
            if isinstance(step, CheckConclusion):
                self._end_session(session, step, now)
                return
            session.groups = step

    def _end_session(self, session: _Session, verdict: CheckConclusion, now: float) -> None:
        times = best_times(session.rounds)
        for node, participant in session.nodes.items():
            self._verdicts[participant.key] = verdict
            waiting = self._waiting.get(node)
            if waiting is not None and waiting.key == participant.key:
                # The node was considered lost, and this verdict answers its new request.
                del self._waiting[node]
            if verdict.passed(node) and not participant.is_lost and node not in self._waiting:
                self._trusted.add(node)
                if node in times and node not in verdict.stragglers:
                    # The best times of a node that was not slow, for later comparison.
                    history = self._history.setdefault(node, deque(maxlen=HISTORY_LENGTH))
                    history.append(times[node])
        self.outcomes |= check_outcomes(session.nodes, session.rounds, verdict)
        self.ended += 1
        while len(self._verdicts) > MAX_VERDICTS:
            del self._verdicts[next(iter(self._verdicts))]
        self._session = None
        self._begin_or_wait(now)

    @staticmethod
    def _missing(session: _Session) -> list[int]:
        return [node for group in session.groups for node in group if node not in session.results]

    @staticmethod
    def _is_participant(session: _Session, key: ParticipantKey) -> bool:
        node = session.nodes.get(key[0])
        return node is not None and node.key == key and not node.is_lost


def _key(message: CheckRequest | CheckResult) -> ParticipantKey:
    return message.node_id, message.incarnation, message.check


def _is_testing_in(message: CheckRequest | CheckResult, session: _Session) -> bool:
    return isinstance(message, CheckRequest) and message.testing == len(session.rounds)


def _sort_key(request: CheckRequest) -> tuple[bool, int, int]:
    return request.node_rank < 0, request.node_rank, request.node_id


def _node_result(message: CheckResult) -> NodeResult:
    return NodeResult(*(getattr(message, name) for name in NodeResult.__struct_fields__))


def _verdict_message(node: int, conclusion: CheckConclusion) -> CheckVerdict:
    return CheckVerdict(
        passed=conclusion.passed(node),
        faulty={node: str(finding) for node, finding in conclusion.faulty.items()},
        stragglers={node: str(finding) for node, finding in conclusion.stragglers.items()},
        undecided=conclusion.undecided,
    )
