"""Erase: takes a person out of archives, tables and sessions, and lists them for all later jobs."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from pipeline.errors import UsageError
from pipeline.runtime import options
from pipeline.runtime.erasures import KEY_VARIABLE, LIST_VARIABLE, ErasureList
from pipeline.runtime.progress import progress_logger
from pipeline.runtime.session import start_session
from pipeline.sinks.erasing import Erased, Eraser
from pipeline.sources.records import LakeSource, Source, parse_source
from pipeline.transforms.erased import IdKind, Persons

JOB = "erase"

OutputsOption = Annotated[
    list[Source],
    typer.Option(
        "--from",
        parser=options.parsed(parse_source),
        metavar="URL",
        help="an archive, the tables of `tables`, or sessions: delta://PATH, iceberg://PATH or "
        "parquet://PATH; may be repeated",
    ),
]
UserIdsOption = Annotated[
    list[str] | None, typer.Option("--user-id", help="a userId of the person; may be repeated")
]
AnonymousIdsOption = Annotated[
    list[str] | None, typer.Option("--anonymous-id", help="an anonymousId of theirs; may be repeated")
]
ListOption = Annotated[
    str | None,
    typer.Option(
        "--erasures", metavar="PATH", envvar=LIST_VARIABLE, help="folder of the list that all jobs apply"
    ),
]
KeyFileOption = Annotated[
    str | None,
    typer.Option(
        "--erasure-key-file", metavar="FILE", envvar=KEY_VARIABLE, help="secret key of the list's hashes"
    ),
]
KeepOption = Annotated[
    timedelta,
    options.duration_option(
        "--keep",
        "how long versions of before stay for readers; 0s: not at all, while no job writes there",
        shown="7d",
    ),
]
RetentionOption = Annotated[
    timedelta | None,
    options.duration_option("--retention", "that of the topic: the report says until when it has them"),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="only count the rows; the list stays as it is, too")
]


def erase(
    outputs: OutputsOption,
    user_id: UserIdsOption = None,
    anonymous_id: AnonymousIdsOption = None,
    erasures: ListOption = None,
    key_file: KeyFileOption = None,
    keep: KeepOption = timedelta(days=7),
    retention: RetentionOption = None,
    dry_run: DryRunOption = False,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Erase a person: the rows of an archive keep place and key, those of tables and sessions are deleted.

    Lists the ids by keyed hashes first, then erases everybody on the list; without an id only that. May be
    killed and started again at any time.
    """
    listed = ErasureList.of(erasures, key_file)
    if listed is None:
        raise UsageError("erase needs --erasures and --erasure-key-file")
    lakes = [lake for lake in outputs if isinstance(lake, LakeSource)]
    if len(lakes) != len(outputs):
        raise UsageError("a topic deletes by its retention only: name archives, tables and sessions")
    log_progress = progress_logger(JOB)
    log_progress("starting Spark")
    # Iceberg's catalogs are by folder: that of a table, and that of the tables in a folder.
    tables = (LakeSource(lake.format, f"{lake.path.rstrip('/')}/loads") for lake in lakes)
    spark = start_session(JOB, *lakes, *tables, remote=remote, conf=conf)
    ids = [(IdKind.USER, text) for text in user_id or ()]
    ids += [(IdKind.ANONYMOUS, text) for text in anonymous_id or ()]
    if dry_run:
        persons = listed.persons(spark)
        persons = Persons(persons.key, persons.hashes | {persons.hash_of(kind, text) for kind, text in ids})
    else:
        persons = listed.add(spark, ids)
    eraser, found = Eraser(spark, persons, keep, dry_run), list[Erased]()
    for lake in lakes:
        log_progress(f"looking through {lake}")
        for erased in eraser.erase(lake):
            found.append(erased)
            print(f"{erased.output}: {erased.rows:,} rows {'to erase' if dry_run else 'erased'}")
    rows = sum(erased.rows for erased in found)
    print(f"{rows:,} rows {'would be' if dry_run else 'are'} erased; {len(persons.hashes):,} ids are listed")
    if not dry_run:
        print("\n".join(remains(found, keep, retention, datetime.now(UTC))))


def remains(found: list[Erased], keep: timedelta, retention: timedelta | None, now: datetime) -> list[str]:
    """Return what still holds the persons, and until when."""
    lines = []
    changed = [erased for erased in found if erased.rows and not erased.output.startswith("parquet://")]
    if keep and changed:
        until = f"{now + keep:%Y-%m-%dT%H:%MZ}"
        lines.append(f"versions of before have them until erase runs again after {until}")
    newest = max((erased.newest for erased in found if erased.newest), default=None)
    if retention is not None and newest is not None:
        lines.append(f"the topic has them until {newest + retention:%Y-%m-%dT%H:%MZ}")
    else:
        lines.append("the topic has them until its retention deletes them")
    lines.append("the quarantine may have some: gateway quarantine list --contains ID (erase-a-person.md)")
    return lines
