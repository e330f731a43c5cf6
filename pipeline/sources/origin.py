"""What a source is, whatever its address: the identity that a sink remembers, and where it begins now."""

from dataclasses import dataclass

from pipeline.embedded_log import read_log_id, read_partitions
from pipeline.sources.kafka import identify_topic, standings
from pipeline.sources.records import KafkaSource, LakeSource, LogSource, Offsets, Source


@dataclass(frozen=True)
class Origin:
    """A log as nobody else's: the same at another address, another one if its topic is made anew."""

    id: str
    topic: str
    partitions: int
    starts: Offsets  # the first offset that is still there, by partition

    @property
    def has_offsets(self) -> bool:
        """Whether a stream's position in it is an offset a partition; of an archive it is none."""
        return self.partitions > 0


def origin_of(source: Source) -> Origin:
    """
    Return what a source is now.

    Raises:
        PipelineError: it does not answer, or is not there.
    """
    match source:
        case KafkaSource():
            found = identify_topic(source.brokers, source.topic)
            starts = {p: s.start_offset for p, s in standings(source.brokers, source.topic).items()}
            return Origin(
                f"kafka:{found.cluster_id}/{found.topic_id}", source.topic, found.partitions, starts
            )
        case LogSource():
            partitions = read_partitions(source.data_dir, source.topic)
            starts = {p.partition: p.log_start_offset for p in partitions}
            name = f"log:{read_log_id(source.data_dir)}/{source.topic}"
            return Origin(name, source.topic, len(partitions), starts)
        case LakeSource():
            return Origin(str(source), "", 0, {})
    raise AssertionError(source)
