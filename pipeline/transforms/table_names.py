"""
Names of tables and columns for events, by Segment's warehouse convention. Pure.

A name depends on its text alone, so no order of events changes it.

    Order Completed, orderCompleted, order_completed  ->  order_completed

What would collide, or is no identifier everywhere, has a rule; docs/pipeline/tables.md lists them.
"""

import re
import unicodedata
from functools import lru_cache
from hashlib import sha256

NAME_CHARS_MAX = 63
"""Postgres cuts longer names; BigQuery, Snowflake and Redshift take more."""

HASH_CHARS = 8
TYPE_TABLES = {
    "track": "tracks",
    "page": "pages",
    "screen": "screens",
    "identify": "identifies",
    "group": "groups",
    "alias": "aliases",
}
CLOUDEVENTS = "cloudevents"
OTHERS = "others"
"""The table of what is none of these types, and no CloudEvent."""

USERS, ACCOUNTS = "users", "accounts"
LATEST_TABLES = {"identifies": USERS, "groups": ACCOUNTS}
"""The tables of latest traits, by that of the calls."""

DRIFT, LOADS = "drift", "loads"
STANDARD_TABLES = frozenset({*TYPE_TABLES.values(), CLOUDEVENTS, OTHERS, USERS, ACCOUNTS, DRIFT, LOADS})

FIXED_COLUMNS = frozenset(
    {
        "id",
        "source",
        "type",
        "event",
        "event_text",
        "user_id",
        "anonymous_id",
        "group_id",
        "previous_id",
        "name",
        "category",
        "received_at",
        "sent_at",
        "original_timestamp",
        "timestamp",
        "properties",
        "traits",
        "value",
        "log_epoch",
        "log_partition",
        "log_offset",
        "dt",
    }
)
"""Columns that no property or trait of this name gets, in any table."""

CONTEXT = "context"

_WORDS = """
all analyse analyze and any array as asc authorization between binary both by case cast check collate column
constraint create cross cube current current_date current_time current_timestamp current_user default
delete desc distinct drop else end escape except exists false fetch filter following for foreign from
full grant group grouping having if ignore in initially inner insert intersect interval into is join
lateral leading left like limit localtime localtimestamp minus natural new not null offset old on only or
order outer over overlaps partition placing preceding primary qualify range recursive references revoke
right rollup row rows sample select session_user set similar some start symmetric table tablesample then
to trailing trigger true unbounded union unique unnest update user using values view when where window
with within
"""
RESERVED_WORDS = frozenset(_WORDS.split())
"""What a name may not be without quotes in Postgres, Redshift, Snowflake, BigQuery, Spark or DuckDB."""

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OTHERS = re.compile(r"[^a-z0-9]+")
_CACHED_NAMES = 65_536


@lru_cache(_CACHED_NAMES)
def table_of(event: str) -> str:
    """Return the table of a track event's name."""
    name = _snake_case(event)
    return _identifier(f"event_{name}" if not name or name in STANDARD_TABLES else name, event)


@lru_cache(_CACHED_NAMES)
def column_of(field: str, path: tuple[str, ...]) -> str:
    """
    Return the column of a property, trait or part of the context.

    Args:
        field: `properties`, `traits` or `context`, which the event has it in.
        path: names of the objects around it, and its own.
    """
    text = "_".join(path)
    name = _snake_case(text)
    if field == CONTEXT:
        name = f"{CONTEXT}_{name}"
    elif not name or name in FIXED_COLUMNS or name.startswith(f"{CONTEXT}_"):
        name = f"{'trait' if field == 'traits' else 'property'}_{name}"
    return _identifier(name, text)


def _snake_case(text: str) -> str:
    """Return words of a-z and 0-9 joined by `_`; what has none is lost."""
    plain = unicodedata.normalize("NFKD", text.replace("ß", "ss")).encode("ascii", "ignore").decode()
    return _OTHERS.sub("_", _WORD_ENDS.sub("_", plain).lower()).strip("_")


def _identifier(name: str, text: str) -> str:
    """Return a name that is short, no reserved word, and not that of a text with other letters."""
    if _loses_letters(text):
        name = f"{name.rstrip('_')}_{_hash_of(unicodedata.normalize('NFKC', text).casefold())}"
    if name in RESERVED_WORDS or name[0].isdigit():
        name = f"_{name}"
    if len(name) > NAME_CHARS_MAX:
        kept = name[: NAME_CHARS_MAX - HASH_CHARS - 1].rstrip("_")
        name = f"{kept}_{_hash_of(name)}"
    return name


def _loses_letters(text: str) -> bool:
    """Whether it has letters or digits that have no like in ASCII, or nothing else than other characters."""
    if text.isascii():
        return not any(character.isalnum() for character in text)
    decomposed = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    is_bare = not any(character.isascii() and character.isalnum() for character in decomposed)
    return is_bare or any(character.isalnum() and not character.isascii() for character in decomposed)


def _hash_of(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_CHARS]
