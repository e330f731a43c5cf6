"""Claim: whatever happens to a connection between workers, a submission's future says what is known of it."""

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.peers.connection import Connection
from app.peers.errors import UnknownKindError
from app.peers.frames import Kind
from app.peers.limits import Versions
from app.peers.link import PeerLink
from app.peers.peers import Peers
from dedupe.decide.admission import Admission
from dedupe.model.errors import (
    DeadlineExceededError,
    LaneNotActiveError,
    LaneSaturatedError,
    OutcomeUnknownError,
)
from dedupe.submission import Outcomes
from tests.support.cancellation import cancelled_at
from tests.support.peer_group import LIMITS, Group, error_of, pairs, running, until
from tests.support.peers import SECRET, LoopClock, RecordingHandler, events_of
from tests.support.sim_net import address_of
from tests.support.submissions import submission_of


async def test_connection_that_breaks_before_anything_was_sent_has_taken_nothing() -> None:
    async with running(Group("a", "b")) as group:
        answer = group.submit("a", "b")
        group.net.reset("a", "b")
        assert await error_of(answer) is LaneNotActiveError
        assert not group.handlers["b"].submissions


async def test_connection_that_breaks_with_the_submission_on_its_way_leaves_it_unknown() -> None:
    async with running(Group("a", "b")) as group:
        group.net.hold("a", "b")
        answer = group.submit("a", "b")
        await asyncio.sleep(0.01)
        group.net.reset("a", "b")
        assert await error_of(answer) is OutcomeUnknownError
        assert not group.handlers["b"].submissions


async def test_connection_that_breaks_with_the_answer_on_its_way_leaves_it_unknown() -> None:
    async with running(Group("a", "b")) as group:
        group.net.hold("b", "a")
        answer = group.submit("a", "b")
        await until(lambda: bool(group.handlers["b"].submissions))
        await asyncio.sleep(0.01)
        group.net.reset("a", "b")
        assert await error_of(answer) is OutcomeUnknownError


async def test_connection_that_breaks_after_the_answer_changes_nothing() -> None:
    async with running(Group("a", "b")) as group:
        answer = group.submit("a", "b", 3)
        await until(answer.done)
        group.net.reset("a", "b")
        assert (await answer).offsets == [0, 1, 2]


async def test_submissions_that_wait_for_a_peer_to_read_were_not_sent() -> None:
    async with running(Group("a", "b")) as group:
        group.net.hold("a", "b")
        sent = group.submit("a", "b", 4, value=bytes(800_000))
        await asyncio.sleep(0.01)
        kept = group.submit("a", "b", 4, value=bytes(800_000))
        await asyncio.sleep(0.01)
        group.net.reset("a", "b")
        assert await error_of(sent) is OutcomeUnknownError
        assert await error_of(kept) is LaneNotActiveError


async def test_reset_is_mended_before_it_counts() -> None:
    async with running(Group("a", "b")) as group:
        await asyncio.sleep(2)
        link, taken = group.link("a", "b"), len(group.handlers["a"].received)
        group.net.reset("a", "b")
        await asyncio.sleep(0)
        await until(lambda: group.peers["a"].metrics.connected == 2)
        assert link.is_up
        assert link.status == "status of b"
        assert group.handlers["a"].received[taken:] == [("b", "status", "status of b")]
        assert group.peers["a"].metrics.reconnects == 1
        assert (await group.submit("a", "b")).offsets == [0]


async def test_worker_that_is_gone_is_down_at_once() -> None:
    async with running(Group("a", "b")) as group:
        await asyncio.sleep(2)
        await group.stop("b")
        assert await until(lambda: not group.link("a", "b").is_up) < 0.1
        assert group.link("a", "b").status is None
        assert group.handlers["a"].received[-1] == ("b", "status", None)
        with pytest.raises(LaneNotActiveError):
            group.submit("a", "b")
        assert not group.link("a", "b").notify("news", 1)
        group.start("b")
        assert await until(lambda: group.link("a", "b").is_up) < 1.0


@pytest.mark.regression("A cancellation out of a library ended a link unseen.")
@pytest.mark.parametrize("number", range(1, 6))  # calls, hears, is up, mends, hears
async def test_cancellation_of_a_library_at_any_await_of_a_link_ends_no_link(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PeerLink.run
    monkeypatch.setattr(PeerLink, "run", lambda link: cancelled_at(number, run(link)))
    async with running(Group("a", "b")) as group:
        await asyncio.sleep(2)
        group.net.reset("a", "b")
        await asyncio.sleep(2)
        assert all(group.link(*pair).is_up for pair in pairs(group))
        assert (await group.submit("a", "b")).offsets == [0]
    assert not group.net.ways()


@pytest.mark.parametrize("steps", range(30))
async def test_link_that_is_ended_at_any_step_leaves_no_connection_and_tells_so(steps: int) -> None:
    group = Group("a", "b")
    async with running(group, is_linked=False):
        await asyncio.sleep(steps * 0.0001)
        group.peers["a"].set_members({})
        await asyncio.sleep(1)
        told = [
            body for worker, kind, body in group.handlers["a"].received if (worker, kind) == ("b", "status")
        ]
        assert told in ([], ["status of b", None])
        assert group.peers["a"].link("b") is None
        assert group.net.ways() == {("a", "b"), ("b", "a")}  # b's own
    assert not group.net.ways()


@pytest.mark.parametrize("steps", range(12))
async def test_caller_that_gives_up_at_any_step_takes_no_room(steps: int) -> None:
    only_one = replace(LIMITS, requests_max=1, events_max=1)
    async with running(Group("a", "b", a=only_one, b=only_one)) as group:
        link = group.link("a", "b")
        asked = asyncio.ensure_future(link.request("lookup", 1, 5))
        submitted = group.submit("a", "b")
        await asyncio.sleep(steps * 0.0001)
        asked.cancel()
        submitted.cancel()
        await asyncio.sleep(0.1)  # what is answered to nobody arrives
        assert await link.request("lookup", 2, 5) == ["lookup", 2]
        assert (await group.submit("a", "b", start=1)).offsets == [1]
        assert group.peers["a"].metrics.connected == 1


async def test_worker_that_is_gone_is_tried_twice_a_second() -> None:
    async with running(Group("a", "b")) as group:
        await group.stop("b")
        await until(lambda: not group.link("a", "b").is_up)
        group.net.attempts.clear()
        await asyncio.sleep(30)
        assert 45 <= len(group.net.attempts) <= 75


@pytest.mark.parametrize("way", [("b", "a"), ("a", "b")])
async def test_one_way_silence_ends_both_ends(way: tuple[str, str]) -> None:
    async with running(Group("a", "b")) as group:
        await asyncio.sleep(2)
        group.net.hold(*way)
        answer = group.submit("a", "b")
        # The end that still hears learns of it from the other one, and first tries to connect again.
        assert 1.3 <= await until(lambda: not group.link("a", "b").is_up) <= 2.7
        assert await error_of(answer) is OutcomeUnknownError
        await asyncio.sleep(5)
        assert not group.link("a", "b").is_up
        assert not group.link("b", "a").is_up
        group.net.release(*way)
        await until(lambda: group.link("a", "b").is_up and group.link("b", "a").is_up, 3)


async def test_frozen_worker_is_down_within_two_seconds_of_its_last_byte() -> None:
    async with running(Group("a", "b", "c")) as group:
        await asyncio.sleep(2)
        group.net.freeze("b")
        link = group.link("a", "b")
        asked = asyncio.ensure_future(link.request("where", None, 30.0))
        assert 1.3 <= await until(lambda: not link.is_up) <= 2.2  # its last byte may be a ping ago
        assert group.link("a", "c").is_up
        assert await error_of(asked) is OutcomeUnknownError
        group.net.thaw("b")
        await until(lambda: all(group.link(*pair).is_up for pair in pairs(group)), 5)


async def test_idle_links_stay_up() -> None:
    async with running(Group("a", "b", "c")) as group:
        for peers in group.peers.values():
            peers.metrics.frames_refused.clear()
        await asyncio.sleep(120)
        for peers in group.peers.values():
            assert peers.metrics.connected == 2
            assert peers.metrics.reconnects == 0
            assert not peers.metrics.frames_refused


async def test_answers_come_out_of_order() -> None:
    async with running(Group("a", "b")) as group:
        group.handlers["b"].holds = True
        first, second = group.submit("a", "b"), group.submit("a", "b", 2, start=5)
        await until(lambda: len(group.handlers["b"].submissions) == 2)
        group.handlers["b"].submissions[1].accept()
        assert (await second).offsets == [5, 6]
        assert not first.done()
        group.handlers["b"].submissions[0].accept()
        assert (await first).offsets == [0]


async def test_submissions_of_one_turn_travel_in_one_frame_and_so_do_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []
    send = Connection.send

    def noting(connection: Connection, kind: int, number: int = 0, body: bytes = b"") -> None:
        sent.append(kind)
        send(connection, kind, number, body)

    async with running(Group("a", "b")) as group:
        monkeypatch.setattr(Connection, "send", noting)
        answers = [group.submit("a", "b", count, start=10 * count) for count in (1, 3, 2)]
        assert [(await answer).offsets for answer in answers] == [[10], [30, 31, 32], [20, 21]]
        assert (sent.count(Kind.SUBMIT), sent.count(Kind.OUTCOMES)) == (1, 1)
        large = [group.submit("a", "b", 1, value=bytes(700_000)) for _ in range(2)]
        await asyncio.gather(*large)
        assert sent.count(Kind.SUBMIT) == 3, "a frame has about a MiB of events"


async def test_submission_or_answer_that_cannot_be_told_fails_alone() -> None:
    async with running(Group("a", "b")) as group:
        handler, unsayable = group.handlers["b"], [events_of(1)[0]._replace(message_id="\ud800")]
        good = group.submit("a", "b")
        bad = group.link("a", "b").submit(0, submission_of(unsayable, size_bytes=100))
        assert (await good).offsets == [0]
        with pytest.raises(UnicodeEncodeError):
            await bad
        assert len(handler.submissions) == 1
        handler.holds = True
        answers = [group.submit("a", "b") for _ in range(2)]
        await until(lambda: len(handler.submissions) == 3)
        handler.submissions[1].answer.set_result(Outcomes([Admission.NEW], [2**64]))
        handler.submissions[2].accept()
        assert await error_of(answers[0]) is OutcomeUnknownError
        assert (await answers[1]).offsets == [0]
        group.link("a", "b").check_capacity(submission_of(events_of(1) * LIMITS.events_max, size_bytes=1))


async def test_deadline_is_passed_on_less_the_way() -> None:
    async with running(Group("a", "b")) as group:
        group.net.delays_s["a", "b"] = 0.25
        group.handlers["b"].holds = True
        answer = group.submit("a", "b")
        await until(lambda: bool(group.handlers["b"].submissions))
        # What the way takes is not known to anybody; the owner waits for that much longer at most.
        assert 4.4 < group.handlers["b"].submissions[0].deadline.remaining_s <= 4.5
        group.handlers["b"].submissions[0].answer.set_exception(DeadlineExceededError("too late"))
        assert await error_of(answer) is DeadlineExceededError


async def test_too_much_under_way_is_refused_until_it_is_answered() -> None:
    async with running(Group("a", "b", a=replace(LIMITS, events_max=10))) as group:
        group.handlers["b"].holds = True
        answer = group.submit("a", "b", 8)
        group.link("a", "b").check_capacity(submission_of(events_of(2), size_bytes=1))
        with pytest.raises(LaneSaturatedError):
            group.submit("a", "b", 3)
        with pytest.raises(LaneSaturatedError):
            group.link("a", "b").check_capacity(submission_of(events_of(1), size_bytes=LIMITS.bytes_max))
        await until(lambda: bool(group.handlers["b"].submissions))
        group.handlers["b"].submissions[0].accept()
        await answer
        group.link("a", "b").check_capacity(submission_of(events_of(10), size_bytes=1))


async def test_owner_takes_no_more_than_its_own_limit() -> None:
    async with running(Group("a", "b", b=replace(LIMITS, bytes_max=10_000))) as group:
        group.handlers["b"].holds = True
        first = group.submit("a", "b", 10)
        assert await error_of(group.submit("a", "b", 30)) is LaneSaturatedError
        assert len(group.handlers["b"].submissions) == 1
        group.handlers["b"].holds = False
        group.handlers["b"].submissions[0].accept()
        assert len((await first).offsets) == 10
        assert len((await group.submit("a", "b", 10)).offsets) == 10


async def test_peer_that_does_not_read_its_answers_gets_no_more_work_done() -> None:
    async with running(Group("a", "b")) as group:

        async def respond(_kind: str, body: Any) -> Any:
            return bytes(body)

        group.handlers["b"].respond = respond
        link = group.link("a", "b")
        group.net.hold("b", "a")
        asked = [asyncio.ensure_future(link.request("bytes", 900_000, 30.0)) for _ in range(4)]
        await asyncio.sleep(0.1)
        late = group.submit("a", "b")
        await asyncio.sleep(0.5)
        assert not group.handlers["b"].submissions
        group.net.release("b", "a")
        assert [len(answer) for answer in await asyncio.gather(*asked)] == [900_000] * 4
        assert (await late).offsets == [0]


async def test_messages_to_a_peer_that_does_not_read_are_dropped_and_counted() -> None:
    async with running(Group("a", "b")) as group:
        group.net.hold("a", "b")
        link = group.link("a", "b")
        told = 0
        for _ in range(20):
            told += link.notify("news", bytes(1_000_000))
            await asyncio.sleep(0)
        assert told < 8
        assert group.peers["a"].metrics.messages_dropped == 20 - told
        group.net.release("a", "b")
        await until(lambda: len([1 for taken in group.handlers["b"].received if taken[1] == "news"]) == told)


@pytest.mark.regression("A message on a connection that had just ended raised an error.")
async def test_message_on_a_connection_that_has_just_ended_is_dropped_and_counted() -> None:
    async with running(Group("a", "b")) as group:
        dialler = group.link("a", "b")._dialler
        assert dialler is not None
        dialler.end("lost")
        assert not group.link("a", "b").notify("news", 1)
        assert group.peers["a"].metrics.messages_dropped == 1


async def test_questions_are_bounded_in_number_and_time() -> None:
    async with running(Group("a", "b", a=replace(LIMITS, requests_max=2))) as group:

        async def respond(_kind: str, _body: Any) -> Any:
            await asyncio.sleep(60)

        group.handlers["b"].respond = respond
        link = group.link("a", "b")
        asked = [asyncio.ensure_future(link.request("slow", None, 3.0)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(LaneSaturatedError):
            await link.request("slow", None, 3.0)
        assert [await error_of(each) for each in asked] == [DeadlineExceededError] * 2
        group.handlers["b"].respond = None
        assert await link.request("quick", 1, 3.0) == ["quick", 1]


async def test_owner_that_answers_too_many_questions_says_so() -> None:
    async with running(Group("a", "b", b=replace(LIMITS, requests_max=1))) as group:

        async def respond(_kind: str, _body: Any) -> Any:
            await asyncio.sleep(1)

        group.handlers["b"].respond = respond
        asked = [asyncio.ensure_future(group.link("a", "b").request("slow", None, 3.0)) for _ in range(2)]
        with pytest.raises(LaneSaturatedError):
            await asked[1]
        assert await asked[0] is None


async def test_two_workers_of_one_name_do_not_race_for_the_connection() -> None:
    async with running(Group("a", "b")) as group:
        same = Peers("a", secret=SECRET, clock=LoopClock(), network=group.net.network("a again"))
        running_too = asyncio.create_task(same.run(None, RecordingHandler()))
        await asyncio.sleep(0)
        same.set_members({"b": address_of("b")})
        group.net.attempts.clear()
        await asyncio.sleep(30)
        assert 30 < len(group.net.attempts) < 300
        running_too.cancel()
        await asyncio.wait([running_too])
        await asyncio.sleep(2)
        assert (await group.submit("a", "b")).offsets == [0]


async def test_handler_that_fails_does_not_end_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_status(*_arguments: Any) -> None:
        raise KeyError("a bug of the handler")

    async with running(Group("a", "b")) as group:
        monkeypatch.setattr(group.handlers["a"], "on_status", on_status)
        group.net.reset("a", "b")
        await asyncio.sleep(3)
        assert group.link("a", "b").is_up


async def test_members_come_and_go() -> None:
    async with running(Group("a", "b", "c")) as group:
        group.handlers["b"].holds = True
        answer = group.submit("a", "b")
        await until(lambda: bool(group.handlers["b"].submissions))
        group.peers["a"].set_members({"a": address_of("a"), "c": address_of("c")})
        assert group.peers["a"].link("b") is None
        assert await error_of(answer) is OutcomeUnknownError
        assert group.link("a", "c").is_up
        assert group.link("b", "a").is_up
        group.peers["a"].set_members({name: address_of(name) for name in "abc"})
        await until(lambda: group.link("a", "b").is_up)


async def test_address_that_another_worker_has_now_is_not_believed() -> None:
    async with running(Group("a", "b", "c")) as group:
        group.peers["a"].set_members({"b": address_of("c")})
        await asyncio.sleep(3)
        assert not group.link("a", "b").is_up
        assert group.peers["c"].metrics.frames_refused["wrong_worker"] > 3


async def test_address_that_is_none_is_tried_again_and_again() -> None:
    async with running(Group("a", "b")) as group:
        group.peers["a"].set_members({"b": "nonsense"})
        await asyncio.sleep(3)
        assert not group.link("a", "b").is_up
        group.peers["a"].set_members({"b": address_of("b")})
        await until(lambda: group.link("a", "b").is_up)


async def test_workers_of_two_versions_speak_the_older_one() -> None:
    newer = replace(LIMITS, versions=Versions(newest=2, oldest=1))
    async with running(Group("a", "b", b=newer)) as group:
        assert (await group.submit("a", "b", 3)).offsets == [0, 1, 2]
        assert (await group.submit("b", "a", 3)).offsets == [0, 1, 2]
        assert await group.link("b", "a").request("where", 1, 5.0) == ["where", 1]
        assert all(not peers.metrics.frames_refused for peers in group.peers.values())


async def test_workers_of_versions_too_far_apart_do_not_speak() -> None:
    newer = replace(LIMITS, versions=Versions(newest=3, oldest=2))
    async with running(Group("a", "b", b=newer), is_linked=False) as group:
        await asyncio.sleep(3)
        assert not group.link("a", "b").is_up
        assert group.peers["a"].metrics.frames_refused["version"]


async def test_kind_of_frame_that_is_unknown_is_answered_and_the_connection_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(Group("a", "b")) as group:
        dialler = group.link("a", "b")._dialler
        assert dialler is not None
        send = dialler.send

        def send_newer(kind: int, number: int = 0, body: bytes = b"") -> None:
            send(200 if kind == Kind.REQUEST else kind, number, body)

        monkeypatch.setattr(dialler, "send", send_newer)
        with pytest.raises(UnknownKindError):
            await group.link("a", "b").request("of the future", None, 5.0)
        send(201, 0, b"of the future, not answered")
        assert (await group.submit("a", "b")).offsets == [0]
        assert group.peers["b"].metrics.frames_refused == {"unknown_kind": 2}


async def test_status_is_sent_once_a_turn_and_to_all() -> None:
    async with running(Group("a", "b", "c")) as group:
        group.handlers["b"].own_status = {"serving": [1, 2]}
        for _ in range(10):
            group.peers["b"].announce()
        await until(lambda: group.link("a", "b").status == {"serving": [1, 2]})
        await until(lambda: group.link("c", "b").status == {"serving": [1, 2]})
        assert len([1 for taken in group.handlers["a"].received if taken[2] == {"serving": [1, 2]}]) == 1


@pytest.mark.regression("A connection was used that passed no full packet.")
async def test_connection_on_which_full_packets_vanish_is_not_used() -> None:
    async with running(Group("a", "b"), is_linked=False) as group:
        group.net.size_max["b", "a"] = 1_400
        await asyncio.sleep(5)
        assert not group.link("a", "b").is_up
        assert not group.link("b", "a").is_up
        group.net.mend_all()
        assert await until(lambda: all(group.link(*pair).is_up for pair in pairs(group))) < 4


async def test_path_that_begins_to_drop_full_packets_is_noticed_although_nothing_is_submitted() -> None:
    async with running(Group("a", "b")) as group:
        group.net.size_max["a", "b"] = 1_400
        assert await until(lambda: not any(group.link(*pair).is_up for pair in pairs(group))) < 4
        await asyncio.sleep(10)
        assert not any(group.link(*pair).is_up for pair in pairs(group))
        assert group.peers["a"].metrics.reconnects + group.peers["b"].metrics.reconnects <= 2


async def test_link_is_replaced_once_without_an_answer_to_what_was_submitted() -> None:
    async with running(Group("a", "b")) as group:
        link = group.link("a", "b")
        group.handlers["b"].holds = True
        for is_up in (True, False):
            await asyncio.sleep(11)
            answer = group.submit("a", "b")
            await asyncio.sleep(0.1)
            group.net.reset("a", "b")
            assert await error_of(answer) is OutcomeUnknownError
            await asyncio.sleep(0.1)
            assert link.is_up is is_up
        await until(lambda: link.is_up)
        assert group.peers["a"].metrics.reconnects == 1


async def test_link_that_is_replaced_more_than_twice_in_ten_seconds_is_down() -> None:
    async with running(Group("a", "b")) as group:
        for is_up in (True, True, False):
            await asyncio.sleep(2)
            group.net.reset("a", "b")
            await asyncio.sleep(0.1)
            assert group.link("a", "b").is_up is is_up


@pytest.mark.regression("A worker that others refused logged only that the connection was closed.")
async def test_refused_worker_says_why() -> None:
    group = Group("a", "b", "c", b=replace(LIMITS, versions=Versions(9, 8)))
    group.peers["c"] = Peers(
        "c", secret=SECRET + b"!", clock=LoopClock(), network=group.net.network("c"), rng=Random(3)
    )
    with capture_logs() as logs:
        async with running(group, is_linked=False):
            await asyncio.sleep(3)
    why = {(log["worker"], log["why"]) for log in logs if log["event"] == "no connection to a worker"}
    assert ("b", "refused by b: this worker speaks no version of the frames that it speaks") in why
    assert ("c", "refused by c: this worker has another GATEWAY_IDENTITY_SECRET") in why
    assert ("a", "refused by a: this worker has another GATEWAY_IDENTITY_SECRET") in why
