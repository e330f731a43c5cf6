"""Identity in use: however events are grouped, repeated and restarted, an id keeps its one key."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from dedupe.model.identity import Identity, canonical_content, fingerprint_of
from dedupe.model.routing import partition_of
from dedupe.model.types import EventKey, Fingerprint

SECRET = b"a secret of 24 bytes...."
PARTITIONS = 8
SENDERS = ["web", "we", "ios", ""]
RETRIES = st.fixed_dictionaries(
    {}, optional={"sentAt": st.text(max_size=3), "_metadata": st.integers(), "receivedAt": st.none()}
)


class IdentityMachine(RuleBasedStateMachine):
    """Clients that send batches, again and otherwise grouped, to processes that restart."""

    events = Bundle("events")

    def __init__(self) -> None:
        super().__init__()
        self.identity = Identity(SECRET)
        self.seen: dict[tuple[str, str], tuple[EventKey, int]] = {}
        self.contents: dict[tuple[str, str, int], Fingerprint] = {}

    @rule(
        target=events,
        source=st.sampled_from(SENDERS),
        message_id=st.text("bi-1", max_size=4),
        said=st.integers(0, 2),
    )
    def make_event(self, source: str, message_id: str, said: int) -> tuple[str, str, int]:
        return source, message_id, said

    @rule(batch=st.lists(events, max_size=6), retry=RETRIES)
    def send(self, batch: list[tuple[str, str, int]], retry: dict[str, object]) -> None:
        for source, message_id, said in batch:
            key = self.identity.message_key(source, message_id)
            place = key, partition_of(key, PARTITIONS)
            assert self.seen.setdefault((source, message_id), place) == place
            content = canonical_content({**retry, "messageId": message_id, "said": said})
            fingerprint = fingerprint_of(content)
            assert self.contents.setdefault((source, message_id, said), fingerprint) == fingerprint

    @rule()
    def restart(self) -> None:
        self.identity = Identity(SECRET)

    @invariant()
    def ids_never_share_a_key(self) -> None:
        keys = {key for key, _ in self.seen.values()}
        assert len(keys) == len(self.seen)

    @invariant()
    def contents_of_one_id_never_share_a_fingerprint(self) -> None:
        fingerprints = {(message_id, print_) for (_, message_id, _), print_ in self.contents.items()}
        said = {(message_id, said) for _, message_id, said in self.contents}
        assert len(fingerprints) == len(said)


TestIdentity = IdentityMachine.TestCase
TestIdentity.settings = settings(max_examples=100, stateful_step_count=30)
