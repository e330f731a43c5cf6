"""Claim: SDKs as they are published, through every fault, deliver each event exactly once and end in time."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.sdks.browser_sdks import BROWSER_SDKS
from tests.e2e.sdks.server_sdks import SEGMENT_PYTHON, SERVER_SDKS
from tests.e2e.sdks.session import EVENTS_PER_FAULT, SDK, Session, run_session, run_side_by_side
from tests.fault.conftest import kafka_log
from tests.support.fault_proxy import Fault
from tests.support.gateway import Gateway

# The first test waits for the sessions of all.
pytestmark = pytest.mark.timeout(1800)

# Those that wait longest come first.
SDKS: list[SDK] = [*BROWSER_SDKS, *SERVER_SDKS]
SUCCESS = (200, b'{"success":true}')

Sessions = Mapping[str, Session | BaseException]
each_sdk = pytest.mark.parametrize("sdk", SDKS, ids=lambda sdk: sdk.name)


@pytest.fixture(scope="module")
def sessions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sessions:
    """The sessions of all SDKs whose tests were chosen."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [test.callspec.params.get("sdk") for test in tests if hasattr(test, "callspec")]
    sdks = [sdk for sdk in SDKS if sdk in chosen]
    return asyncio.run(run_side_by_side(sdks, tmp_path_factory.mktemp("sdks")))


@pytest.fixture
def session(sdk: SDK, sessions: Sessions) -> Session:
    session = sessions[sdk.name]
    if isinstance(session, BaseException):
        raise session
    return session


@each_sdk
def test_every_event_is_stored_once_through_every_fault(session: Session) -> None:
    _assert_stored_once(session)


async def test_every_event_is_stored_once_on_kafka_too(kafka_bootstrap: str, tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "gateway", kafka_log(kafka_bootstrap).env)
    _assert_stored_once(await run_session(SEGMENT_PYTHON, gateway))


def _assert_stored_once(session: Session) -> None:
    assert session.proxy.has_struck_all
    events = [line["value"] for line in session.events]
    copies = Counter((event["event"], event["properties"]["n"]) for event in events)
    assert copies == Counter((fault.value, n) for fault in Fault for n in range(EVENTS_PER_FAULT))
    assert len({line["messageId"] for line in session.events}) == len(events)


@each_sdk
def test_every_copy_gets_the_same_answer_and_is_counted_as_a_duplicate(session: Session) -> None:
    assert set(session.proxy.answers) == {SUCCESS}
    assert session.proxy.is_settled
    assert session.totals["accepted"] == len(session.events)
    assert session.totals["duplicates"] >= EVENTS_PER_FAULT
    assert session.totals["received"] == session.totals["accepted"] + session.totals["duplicates"]


@each_sdk
def test_the_sdk_sends_again_and_gives_up_as_it_is_known_to(sdk: SDK, session: Session) -> None:
    assert session.proxy.sent_again == set(Fault) - sdk.sends_once
    assert session.given_up == sdk.gives_up
