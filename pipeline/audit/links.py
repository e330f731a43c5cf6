"""
What ties a record of a client session to others that may be its event.

An event's key is made of its place: client, session and sequence. The gateway knows it elsewhere only by
(client, messageId), if the id is of the client's own. A client whose session is over moves events to another
one, with the id `<session>-<sequence>` of their first place (clients/PROTOCOL.md, "Settlement"). That id does
not give the key of the first place: a record has hashes of client and session, and the session's takes the
client's name, which no record has. So the two are compared by what records have of them: the client, the
first sequence, and the content with the time at which the client made the event.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from dedupe.model.record import FLAG_ID_ASSIGNED

MOVED_ID = "^[0-9A-Za-z]{27}-([1-9][0-9]{0,19})$"
"""The id of a moved event: its first session, a KSUID, and its first sequence."""

_OF_ARRIVAL = "messageId|receivedAt|sentAt|writeKey|ip"
"""Fields of a value that differ between two arrivals of one event."""

_FIELDS = f',"(?:{_OF_ARRIVAL})":"[^"\\\\]*"|"(?:{_OF_ARRIVAL})":"[^"\\\\]*",'

_OF_ID, _OF_PLACE = "id", "place"


def links(has_timestamp: Column) -> Column:
    """
    Return the links of a decoded record of schema.RECORD: an array of (link, is_id); null without a session.

    Two records with one link are one event if `is_id` of either holds. An event with an id of its own has a
    link of that. One without, whose id the gateway has assigned, and one that was moved have a link of their
    first place. `has_timestamp` is whether the client gave the event a time: without one, other events have
    the same content.
    """
    key = F.col("key").cast("string")
    is_assigned = F.col("flags").bitwiseAND(FLAG_ID_ASSIGNED) != 0
    is_moved = ~is_assigned & key.rlike(MOVED_ID)
    first_sequence = F.when(is_moved, F.regexp_extract(key, MOVED_ID, 1)).otherwise(
        F.col("sequence").cast("string")
    )
    content = F.regexp_replace(F.col("value").cast("string"), _FIELDS, "")
    of_id = F.xxhash64(F.lit(_OF_ID), "client_hash", key)
    of_place = F.xxhash64(F.lit(_OF_PLACE), "client_hash", first_sequence, content)
    both = F.array(
        F.when(~is_assigned, F.struct(of_id.alias("link"), F.lit(True).alias("is_id"))),
        F.when(
            has_timestamp & (is_assigned | is_moved),
            F.struct(of_place.alias("link"), is_moved.alias("is_id")),
        ),
    )
    return F.when(F.col("client_hash").isNotNull(), F.array_compact(both))
