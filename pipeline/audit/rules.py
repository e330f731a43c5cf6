"""
The rules for one record: those of dedupe.model.record.parse_identity in SQL, and those for its value.

The source has checked the headers: schema.RECORD has null for a header that is there twice, and for a
source that is no UTF-8. tests/support/foreign.py has records on which both sides must agree.
"""

from secrets import token_hex

from pyspark.sql import Column
from pyspark.sql import functions as F

from dedupe.model.cloudevent import BETWEEN, DIGEST
from dedupe.model.identity import MESSAGE_ID_BYTES_MAX
from dedupe.model.quarantine import RAW
from dedupe.model.record import (
    CHECKSUM_BYTES,
    FLAG_CHECKSUM,
    FLAG_CLOUDEVENT,
    FLAG_SESSION,
    HEADER_GATEWAY,
    HEADER_SOURCE,
)
from pipeline.transforms.clean_topic import BASE_HEADER_BYTES, SESSION_HEADER_BYTES
from pipeline.transforms.erased import ERASED

QUARANTINE_SUFFIX = ".quarantine"
"""The quarantine's topic is GATEWAY_TOPIC and this."""

PROGRESS_BYTES_MIN = 8
"""The watermark of header `gs`."""

_END = token_hex(8)

_STRICT = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}


def flaw() -> Column:
    """Return the first rule that a decoded record of schema.RECORD breaks; null if it breaks none."""
    is_in_session = F.col("flags").bitwiseAND(FLAG_SESSION) != 0
    key = F.col("key").cast("string")
    return (
        F.when(F.col("gw").isNull(), f"not exactly one header {HEADER_GATEWAY!r}")
        .when(F.length("gw") < BASE_HEADER_BYTES, f"header {HEADER_GATEWAY!r} is too short")
        .when(is_in_session & (F.length("gw") < SESSION_HEADER_BYTES), "its session is cut off")
        .when(is_in_session & (F.length("gs") < PROGRESS_BYTES_MIN), "the state of its session is cut off")
        .when(F.col("source").isNull(), f"not exactly one header {HEADER_SOURCE!r} in UTF-8")
        .when(F.col("key").isNull(), "its key is null")
        .when(~F.is_valid_utf8(key), "its key is no UTF-8")
        .when(F.col("lane_seq").isNull(), "no lane_seq reaches 2**63")
    )


def has_checksum() -> Column:
    """Whether a decoded record has a checksum: gateways before that wrote none."""
    return F.col("flags").bitwiseAND(FLAG_CHECKSUM) != 0


def is_as_written() -> Column:
    """Whether a decoded record without a flaw has the content of its checksum, or has none."""
    gw, bytes_before = F.col("gw"), F.length("gw") - CHECKSUM_BYTES
    before = F.substr(gw, F.lit(1), bytes_before)
    content = F.concat(F.encode("source", "UTF-8"), F.col("key"), before, F.col("value"))
    found = F.lpad(F.hex(F.crc32(content)), 2 * CHECKSUM_BYTES, "0")
    told = F.hex(F.substr(gw, bytes_before + 1, F.lit(CHECKSUM_BYTES)))
    is_equal = F.coalesce(found == told, F.lit(False))
    return ~has_checksum() | is_equal


def documents() -> Column:
    """Return the document of a value, and _END; null if it is no JSON. Costly, so a column of its own."""
    # The parser stops after the first document. A value that closes the bracket itself hides what follows,
    # but then _END, which is random, is not in the result.
    end = f',{{"messageId":"{_END}"}}]'
    text = F.concat(F.lit("["), _document().cast("string"), F.lit(end))
    fields = "messageId string, reason string, id string, source string, timestamp string, erased boolean"
    return F.from_json(text, f"array<struct<{fields}>>", _STRICT)


def is_erased(parsed: Column) -> Column:
    """Whether the content of a record with these `documents` was erased on purpose (erase-a-person.md)."""
    document = F.get(parsed, F.lit(0))
    is_told = F.coalesce(document["erased"], document["reason"] == ERASED, F.lit(False))
    return is_told & ~has_checksum()


def is_of_its_key(parsed: Column) -> Column:
    """Whether a value of a decoded record with these `documents` is one JSON object, of its key's event."""
    is_quarantine = F.col("topic").endswith(QUARANTINE_SUFFIX)
    document, end = F.get(parsed, F.lit(0)), F.get(parsed, F.lit(1))
    is_cloudevent = F.col("flags").bitwiseAND(FLAG_CLOUDEVENT) != 0
    own_id = F.when(is_cloudevent, _cloudevent_id(document)).otherwise(document["messageId"])
    is_of_event = F.when(is_quarantine, document["reason"].isNotNull()).otherwise(
        own_id == F.col("key").cast("string")
    )
    is_alone = (F.size(parsed) == 2) & (end["messageId"] == _END)
    return F.coalesce(is_alone & is_of_event & _is_utf8(_document()), F.lit(False))


def _cloudevent_id(document: Column) -> Column:
    """Return dedupe.model.cloudevent.cloudevent_id of a CloudEvent."""
    source, event_id = document["source"], document["id"]
    plain = F.concat(source, F.lit(BETWEEN), event_id)
    size = F.octet_length(source).cast("string")
    digest = F.concat(F.lit(DIGEST), F.sha2(F.concat(size, F.lit(":"), source, event_id), 256))
    is_plain = (F.instr(source, BETWEEN) == 0) & (F.octet_length(plain) <= MESSAGE_ID_BYTES_MAX)
    return F.when(is_plain, plain).otherwise(digest)


def _document() -> Column:
    """Return a value, or of quarantined bytes the line of JSON before them."""
    value = F.col("value")
    is_raw = F.col("topic").endswith(QUARANTINE_SUFFIX) & value.cast("string").startswith(RAW.decode())
    head = F.substring_index(value.cast("string"), "\n", 1).cast("binary")
    return F.when(is_raw, head).otherwise(value)


def _is_utf8(value: Column) -> Column:
    # Checking for ASCII first is cheaper: its Latin-1 characters take one byte each in UTF-8.
    is_ascii = F.octet_length(F.decode(value, "ISO-8859-1")) == F.octet_length(value)
    return is_ascii | F.is_valid_utf8(value.cast("string"))
