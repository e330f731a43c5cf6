"""A sender of floods, hostile bodies and wrong keys that waits for no answer and heeds none."""

import time
from functools import cache

from app.cli.load.events import body
from loadtests.load.answers import RETRIABLE, WrongAnswerError, check_refusal, parsed
from loadtests.load.clients import Client, authorization
from loadtests.load.names import HOSTILE
from tests.support.hostile import Hostile, read_corpus

FLOOD_EVENTS = 500
BODY_BYTES_MAX = 256 * 1024
"""Larger bodies of the corpus are left out: sending them would cost locust more than the gateway."""


@cache
def corpus() -> list[Hostile]:
    """Return the bodies that it sends; the first call is slow."""
    return [case for case in read_corpus() if len(case.wire) <= BODY_BYTES_MAX]


class Vandal(Client):
    """Sends hostile requests."""

    def send(self, due: float) -> None:
        """Send a flood, a hostile body, or something without a key."""
        kind = self.chance.random()
        if kind < 0.3:
            numbers = self.new_numbers(FLOOD_EVENTS)
            self._post("flood", body(numbers), {}, expected=(200, None))
        elif kind < 0.9:
            case = self.chance.choice(corpus())
            self._post("body", case.wire, case.headers, expected=(case.status, case.code))
        else:
            self._post("no key", b"[1]", {"Authorization": ""}, expected=(400, "write_key_missing"))

    def _post(
        self, name: str, data: bytes, headers: dict[str, str], *, expected: tuple[int, str | None]
    ) -> None:
        headers = {"Authorization": authorization(self.options.hostile_key), **headers}
        began = time.perf_counter()
        with self.exchange(data, headers, name=f"{HOSTILE}: {name}") as answer:
            answer.request_meta["response_time"] = (time.perf_counter() - began) * 1e3
            try:
                if answer.status_code in RETRIABLE:
                    check_refusal(answer.content or b"", answer.headers)
                    answer.request_meta["name"] = f"{HOSTILE}: refused"
                elif not answer.status_code:
                    raise WrongAnswerError(f"no answer: {answer.error!r}")
                else:
                    document = parsed(answer.content or b"")
                    if (answer.status_code, document.get("code")) != expected:
                        raise WrongAnswerError(f"{answer.status_code} {document.get('code')}, not {expected}")
            except WrongAnswerError as err:
                answer.failure(str(err))
            else:
                answer.success()
