"""
What one record must be by itself: the rules of dedupe.record.parse_identity in SQL, and of its value.

Headers were judged when they were read: schema.RECORD has none where there were two of a name, and no
source that is not UTF-8. tests/support/foreign.py holds both sides against the same records.
"""

from secrets import token_hex

from pyspark.sql import Column
from pyspark.sql import functions as F

from dedupe.record import FLAG_SESSION, HEADER_GATEWAY, HEADER_SOURCE
from pipeline.transforms.clean_topic import BASE_HEADER_BYTES, SESSION_HEADER_BYTES

QUARANTINE_SUFFIX = ".quarantine"
"""How a gateway names the topic of what it kept apart: GATEWAY_TOPIC and this."""

PROGRESS_BYTES_MIN = 8
"""Of header `gs`: its watermark."""

_END = token_hex(8)

_STRICT = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}


def flaw() -> Column:
    """Return the first rule that a record of schema.RECORD, decoded, breaks; null if it keeps them all."""
    is_in_session = F.col("flags").bitwiseAND(FLAG_SESSION) != 0
    key = F.col("key").cast("string")
    return (
        F.when(F.col("gw").isNull(), f"not exactly one header {HEADER_GATEWAY!r}")
        .when(F.length("gw") < BASE_HEADER_BYTES, f"header {HEADER_GATEWAY!r} is too short")
        .when(is_in_session & (F.length("gw") < SESSION_HEADER_BYTES), "its session is cut off")
        .when(
            is_in_session & (F.length("gs") < PROGRESS_BYTES_MIN), "what was stored of its session is cut off"
        )
        .when(F.col("source").isNull(), f"not exactly one header {HEADER_SOURCE!r} in UTF-8")
        .when(F.col("key").isNull(), "its key is null")
        .when(~F.is_valid_utf8(key), "its key is no UTF-8")
        .when(F.col("lane_seq").isNull(), "no lane_seq gets beyond 2**63")
    )


def documents() -> Column:
    """Return what a value says, and _END; null if it is no JSON. Costly, so a column of its own."""
    # A parser reads no further than the first document: a value may close the bracket and go on as it likes,
    # but then the end is not in there, for nobody could know it when the value was written.
    end = f',{{"messageId":"{_END}"}}]'
    text = F.concat(F.lit("["), F.col("value").cast("string"), F.lit(end))
    return F.from_json(text, "array<struct<messageId string, reason string>>", _STRICT)


def is_of_its_key(found: Column) -> Column:
    """Whether a value, whose `documents` these are, is one JSON object of the event that the key names."""
    is_quarantine = F.col("topic").endswith(QUARANTINE_SUFFIX)
    document, end = F.get(found, F.lit(0)), F.get(found, F.lit(1))
    says = F.when(is_quarantine, document["reason"].isNotNull()).otherwise(
        document["messageId"] == F.col("key").cast("string")
    )
    is_alone = (F.size(found) == 2) & (end["messageId"] == _END)
    return F.coalesce(is_alone & says & _is_utf8("value"), F.lit(False))


def _is_utf8(name: str) -> Column:
    # Where each byte is a character of Latin-1 that takes one byte in UTF-8, too, it is ASCII: to find that
    # out takes a fifth of what looking for sequences of UTF-8 does.
    is_ascii = F.octet_length(F.decode(name, "ISO-8859-1")) == F.octet_length(name)
    return is_ascii | F.is_valid_utf8(F.col(name).cast("string"))
