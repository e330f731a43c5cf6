"""
An explicit-state model of resharding by fenced cuts: two partitions, each with records of its own, each
source and target at once.

Plan 1 moves key `x` from partition 0 to 1 and key `y` from 1 to 0. Once both partitions have decided (cut or
keep), a second plan moves `x` from its home then to the other partition. Both decide of each plan; it counts
once both have, and if both were cut. A partition has two workers that may own it, one of them asleep with an
epoch of before. Appends and decisions of an owner are messages that arrive at any later time, or never. A
fence has a marker written into the clean partition and one into the partition of decisions, one after the
other in any order, and then reads both to its marker.

A read by anyone but a fence returns any beginning of a partition, as that of a leader which does not know yet
that it is none (a write to such a leader is a message that never arrives).
"""

from collections import deque
from collections.abc import Iterator
from math import inf
from random import Random
from typing import NamedTuple, TypeAlias

FENCE = "fence"
HOME = {"x": 0, "y": 1}
SET_BACK = 0.15
"""How often a random walk may take a crash or a loss."""

Entry: TypeAlias = str
"""A key, or FENCE."""


class Decision(NamedTuple):
    """A partition's decision of a plan; `offset` is where the clean partition ended, None for `keep`."""

    plan: int
    offset: int | None


Decisions: TypeAlias = tuple[tuple[Decision, ...], tuple[Decision, ...]]
"""Of both partitions, in order."""


class Message(NamedTuple):
    """An append, or a decision, on its way to a partition's leader."""

    partition: int
    epoch: int
    content: str | Decision


class Worker(NamedTuple):
    """A worker that may own a partition. `step`: idle, fencing, serving, deciding."""

    step: str = "idle"
    epoch: int = 0
    has_marked: bool = False  # the clean partition
    has_marked_decisions: bool = False
    decisions: tuple[Decision, ...] = ()  # of its own partition, as read behind its marker
    others: tuple[Decision, ...] = ()  # of the other partition, as far as read
    inherited: frozenset[tuple[str, int]] = frozenset()  # key and plan of moves to it that are complete
    known: frozenset[str] = frozenset()


IDLE = Worker()


class Partition(NamedTuple):
    """A clean partition, its decisions, and who may write."""

    records: tuple[Entry, ...] = ()
    decisions: tuple[Decision, ...] = ()
    epoch: int = 0  # the newest one that the coordinator has given out
    marked: int = 0  # the newest epoch that the leader of the records knows
    marked_decisions: int = 0
    workers: tuple[Worker, Worker] = (IDLE, IDLE)


class State(NamedTuple):
    """All partitions, plans and messages."""

    partitions: tuple[Partition, Partition] = (Partition(), Partition())
    has_second_plan: bool = False
    messages: frozenset[Message] = frozenset()


class Bounds(NamedTuple):
    """What limits the search: epochs of each partition, records, messages under way, and plans, 1 or 2."""

    epochs: tuple[int, int] = (2, 2)
    records: int = 4
    messages: int = 2
    plans: int = 2


Mutation: TypeAlias = str | None
"""What is left out of the protocol; None for nothing."""

MUTATIONS = (
    "no marker among the decisions",
    "decisions read before the marker",
    "a fence reads decisions from an old leader",
    "serves while its decision is unknown",
    "decides while an append is under way",
    "an heir reads to the end that it sees",
    "an heir serves before it has read",
    "a lane does not check whose the key is",
    "serves before all have decided",
    "a plan counts for who was cut alone",
    "a plan comes back without a new inheritance",
)


def decided(decisions: tuple[Decision, ...], plan: int) -> Decision | None:
    """Return a partition's decision of a plan; None before it."""
    return next((decision for decision in decisions if decision.plan == plan), None)


class Move(NamedTuple):
    """A move of a key: by which plan, from which partition, and where both were cut."""

    plan: int
    source: int
    end: int  # of the source's piece
    begin: int  # of the target's next one


def moves(key: str, of: Decisions, second: bool, mutation: Mutation = None) -> list[Move]:
    """Return the moves of a key that have happened, oldest first."""
    home, moved = HOME[key], []
    for plan in (1, 2) if key == "x" and second else (1,):
        source, target = decided(of[home], plan), decided(of[1 - home], plan)
        if source is None or target is None:
            break
        if mutation == "a plan counts for who was cut alone" and source.offset is not None:
            target = target._replace(offset=target.offset or 0)
        if source.offset is not None and target.offset is not None:
            moved.append(Move(plan, home, source.offset, target.offset))
            home = 1 - home
    return moved


def homes(key: str, moved: list[Move]) -> list[tuple[int, int, float]]:
    """Return where a key has been at home: (partition, from, below), oldest first."""
    begins = [0, *(move.begin for move in moved)]
    places = [(move.source, move.end) for move in moved]
    now = HOME[key] if len(moved) % 2 == 0 else 1 - HOME[key]
    return [(part, begin, end) for begin, (part, end) in zip(begins, [*places, (now, inf)], strict=True)]


def why_wrong(state: State) -> str | None:
    """Return which invariant the state breaks, None if none."""
    parts = state.partitions
    of = parts[0].decisions, parts[1].decisions
    for decisions in of:
        if len({decision.plan for decision in decisions}) < len(decisions):
            return f"a plan is decided twice: {decisions}"
    for key in HOME:
        places = [(p, o) for p in (0, 1) for o, entry in enumerate(parts[p].records) if entry == key]
        if len(places) > 1:
            return f"{key} is stored twice: {places}"
        at_home = homes(key, moves(key, of, state.has_second_plan))
        for partition, offset in places:
            if not any(part == partition and begin <= offset < end for part, begin, end in at_home):
                return f"{key} is not at home in partition {partition} at {offset}: {at_home}"
    return None


def successors(state: State, bounds: Bounds, mutation: Mutation) -> Iterator[State]:
    """Yield every next state."""
    yield from _deliveries(state, bounds)
    if (
        bounds.plans > 1
        and not state.has_second_plan
        and all(decided(part.decisions, 1) for part in state.partitions)
    ):
        yield state._replace(has_second_plan=True)
    for number in (0, 1):
        for which in (0, 1):
            for worker, part, messages in _steps(state, number, which, bounds, mutation):
                workers = list(part.workers)
                workers[which] = worker
                partitions = list(state.partitions)
                partitions[number] = part._replace(workers=(workers[0], workers[1]))
                if len(messages) <= bounds.messages:
                    yield State((partitions[0], partitions[1]), state.has_second_plan, messages)


def _deliveries(state: State, bounds: Bounds) -> Iterator[State]:
    """Yield what happens to messages: each may be lost, refused by an older epoch, or take effect."""
    for message in sorted(state.messages, key=repr):  # in one order, for random walks
        left = state.messages - {message}
        yield state._replace(messages=left)
        part = state.partitions[message.partition]
        if isinstance(message.content, Decision):
            if message.epoch < part.marked_decisions or len(part.decisions) > 3:
                continue
            part = part._replace(decisions=(*part.decisions, message.content))
        else:
            if message.epoch < part.marked or len(part.records) >= bounds.records:
                continue
            part = part._replace(records=(*part.records, message.content))
        partitions = list(state.partitions)
        partitions[message.partition] = part
        yield State((partitions[0], partitions[1]), state.has_second_plan, left)


def _steps(
    state: State, number: int, which: int, bounds: Bounds, mutation: Mutation
) -> Iterator[tuple[Worker, Partition, frozenset[Message]]]:
    """Yield what one worker of a partition may do next, with its partition and the messages then."""
    part, sent = state.partitions[number], state.messages
    me = part.workers[which]
    if me.step != "idle":
        yield IDLE, part, sent  # a crash, or any doubt
    elif part.epoch < bounds.epochs[number]:
        early = part.decisions if mutation == "decisions read before the marker" else ()
        fencing = Worker("fencing", part.epoch + 1, decisions=early)
        yield fencing, part._replace(epoch=part.epoch + 1), sent
    if me.step == "fencing":
        yield from ((worker, after, sent) for worker, after in _fence(me, part, bounds, mutation))
    elif me.step == "deciding" and part.decisions[len(me.decisions) :]:  # the answer has come
        yield me._replace(step="serving", decisions=part.decisions), part, sent
    for worker, messages in _work(state, number, me, mutation):
        yield worker, part, messages


def _work(
    state: State, number: int, me: Worker, mutation: Mutation
) -> Iterator[tuple[Worker, frozenset[Message]]]:
    """Yield what an owner does behind its fence: inherit, store a key, decide a plan."""
    part, other, sent = state.partitions[number], state.partitions[1 - number], state.messages
    is_unsure = me.step == "deciding" and mutation == "serves while its decision is unknown"
    is_serving = me.step == "serving" or is_unsure
    if is_serving:
        yield from ((worker, sent) for worker in _inherit(me, number, state, other, mutation))
    for key in HOME if is_serving else ():
        message = Message(number, me.epoch, key)
        if key not in me.known and message not in sent and _serves(me, number, key, state, mutation):
            yield me._replace(known=me.known | {key}), sent | {message}
    is_sure = not any(message.epoch == me.epoch and message.partition == number for message in sent)
    if me.step == "serving" and (is_sure or mutation == "decides while an append is under way"):
        plan = _open_plan(me, state)
        for offset in (len(part.records), None) if plan else ():
            message = Message(number, me.epoch, Decision(plan, offset))
            yield me._replace(step="deciding"), sent | {message}


def _fence(
    me: Worker, part: Partition, bounds: Bounds, mutation: Mutation
) -> Iterator[tuple[Worker, Partition]]:
    """Yield the steps of a fence: two markers in any order, then the reads. An older epoch gets no marker."""
    is_newest = me.epoch == part.epoch
    if is_newest and not me.has_marked and len(part.records) < bounds.records:
        after = part._replace(records=(*part.records, FENCE), marked=me.epoch)
        yield me._replace(has_marked=True), after
    if is_newest and not me.has_marked_decisions:
        marked = part._replace(marked_decisions=me.epoch)
        if mutation == "no marker among the decisions":
            marked = part
        yield me._replace(has_marked_decisions=True), marked
    if me.has_marked and me.has_marked_decisions:
        known = frozenset(part.records) - {FENCE}
        seen = [part.decisions]
        if mutation == "decisions read before the marker":
            seen = [me.decisions]
        if mutation == "a fence reads decisions from an old leader":
            seen = [part.decisions[:count] for count in range(len(part.decisions) + 1)]
        for decisions in seen:
            yield me._replace(step="serving", known=known, decisions=decisions), part


def _view(me: Worker, number: int) -> Decisions:
    """Return the decisions that a worker knows."""
    return (me.decisions, me.others) if number == 0 else (me.others, me.decisions)


def _open_plan(me: Worker, state: State) -> int:
    """Return the plan that this owner may decide now, as far as it knows; 0 if none."""
    if decided(me.decisions, 1) is None:
        return 1
    return 2 if state.has_second_plan and not decided(me.decisions, 2) and decided(me.others, 1) else 0


def _inherit(me: Worker, number: int, state: State, other: Partition, mutation: Mutation) -> Iterator[Worker]:
    """Yield reads of the other partition: more of its decisions, and its records below a cut."""
    for count in range(len(me.others) + 1, len(other.decisions) + 1):
        yield me._replace(others=other.decisions[:count])
    for key in HOME:
        for move in moves(key, _view(me, number), state.has_second_plan, mutation):
            if move.source == number or (key, move.plan) in me.inherited:
                continue
            ends = [move.end]
            if mutation == "an heir reads to the end that it sees":  # of a leader that is none any more
                ends = list(range(move.end + 1))
            for end in ends:
                known = me.known | ({key} & set(other.records[:end]))
                yield me._replace(inherited=me.inherited | {(key, move.plan)}, known=known)


def _serves(me: Worker, number: int, key: str, state: State, mutation: Mutation) -> bool:
    if mutation == "a lane does not check whose the key is":
        return True
    is_settled = all(decided(me.others, decision.plan) for decision in me.decisions)
    if not is_settled and mutation != "serves before all have decided":
        return False
    moved = moves(key, _view(me, number), state.has_second_plan, mutation)
    home = HOME[key] if len(moved) % 2 == 0 else 1 - HOME[key]
    if home != number:
        return False
    if mutation == "an heir serves before it has read":
        return True
    if mutation == "a plan comes back without a new inheritance" and HOME[key] == number:
        return True
    return all((key, move.plan) in me.inherited for move in moved if move.source != number)


class Result(NamedTuple):
    """The number of states looked at, what was wrong in the last one, and how often a goal was reached."""

    states: int
    wrong: str | None
    goals: int


def is_goal(state: State) -> bool:
    """Whether both keys are stored by their heirs."""
    return "x" in state.partitions[1].records and "y" in state.partitions[0].records


def search(bounds: Bounds, mutation: Mutation = None, *, states_max: int = 10**9) -> Result:
    """Look at all states in the order of their distance, until one is wrong."""
    first = State()
    seen, todo, goals = {first}, deque([first]), 0
    while todo and len(seen) < states_max:
        state = todo.popleft()
        if wrong := why_wrong(state):
            return Result(len(seen), wrong, goals)
        goals += is_goal(state)
        for after in successors(state, bounds, mutation):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return Result(len(seen), None, goals)


def walk(bounds: Bounds, mutation: Mutation, rng: Random, *, walks: int, steps: int) -> Result:
    """Walk at random from the first state on, crashes and losses being rare, until a state is wrong."""
    looked = goals = 0
    for _ in range(walks):
        state = State()
        for _ in range(steps):
            after = list(successors(state, bounds, mutation))
            ahead = [each for each in after if not _is_set_back(state, each)]
            if not after:
                break
            state = rng.choice(after if not ahead or rng.random() < SET_BACK else ahead)
            looked += 1
            if wrong := why_wrong(state):
                return Result(looked, wrong, goals)
            goals += is_home_again(state)
    return Result(looked, None, goals)


def _is_set_back(state: State, after: State) -> bool:
    """Whether a step is a crash, or the loss of a message."""
    if after.partitions == state.partitions:
        return len(after.messages) < len(state.messages)
    workers = [worker for part in state.partitions for worker in part.workers]
    return any(
        now == IDLE != worker
        for worker, now in zip(workers, (w for part in after.partitions for w in part.workers), strict=True)
    )


def is_home_again(state: State) -> bool:
    """Whether `x` has moved away and back, and is stored."""
    moved = moves("x", (state.partitions[0].decisions, state.partitions[1].decisions), state.has_second_plan)
    return len(moved) == 2 and any("x" in part.records for part in state.partitions)
