"""The identity of a source, which sinks store, and its first offsets."""

from dataclasses import dataclass

from pipeline.sources.embedded_log import read_log_id
from pipeline.sources.extent import positions_of
from pipeline.sources.kafka import identify_topic
from pipeline.sources.records import KafkaSource, LogSource, Offsets, Source


@dataclass(frozen=True)
class Origin:
    """One log: the same under another address, and another one if its topic is deleted and created again."""

    id: str
    topic: str
    partitions: int
    starts: Offsets  # the first offset of each partition that retention has left

    @property
    def has_offsets(self) -> bool:
        """Whether the position of a stream in it is one offset a partition; an archive has none."""
        return self.partitions > 0


def origin_of(source: Source) -> Origin:
    """
    Return the identity of a source as it is now.

    Raises:
        PipelineError: it does not answer, or does not exist.
    """
    starts = {p: position.start_offset for p, position in (positions_of(source) or {}).items()}
    match source:
        case KafkaSource():
            topic = identify_topic(source.brokers, source.topic)
            identity = f"kafka:{topic.cluster_id}/{topic.topic_id}"
        case LogSource():
            identity = f"log:{read_log_id(source.data_dir)}/{source.topic}"
        case _:
            return Origin(str(source), "", 0, {})
    return Origin(identity, source.topic, len(starts), starts)
