"""`gateway topics`: the topics that a gateway needs on Kafka."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from app.cli.console import EXIT_USAGE, guarded, note, run_quietly

if TYPE_CHECKING:
    from app.settings.model import Settings
    from dedupe.storage.log import LogStore

REPLICAS = 3
"""With fewer, the gateway warns, or refuses to start in production."""

SETTLE_TRIES, SETTLE_RETRY_S = 20, 0.25

Work: TypeAlias = "Callable[[LogStore, Settings], Coroutine[Any, Any, None]]"

topics = typer.Typer(
    name="topics",
    help="Create the topics that a gateway needs on Kafka, or check them.",
    no_args_is_help=True,
)


@topics.command()
@guarded
def create(
    replicas: Annotated[int, typer.Option(min=1, max=32, help="Replication factor.")] = REPLICAS,
) -> None:
    """
    Create the clean topic, its quarantine and its routing topic with safe settings.

    Partitions and retention are those of the settings; existing topics are not changed. It needs the right to
    create topics. Then it checks all as `gateway topics check` does, with its exit codes.

    Example: `gateway topics create`, or `gateway topics create --replicas 1` on a single broker
    """

    async def work(store: "LogStore", settings: "Settings") -> None:
        from app.stores import create_kafka_topics, kafka_topics_of

        needed = kafka_topics_of(settings)
        were_there = [topic for topic in needed if await store.partitions_of(topic.name)]
        await _settled(lambda: create_kafka_topics(store, settings, replication_factor=replicas))
        for topic in needed:
            done = "exists" if topic in were_there else f"created, {topic.partitions} partitions"
            note(f"topic {topic.name} {done}")
        await _settled(lambda: _check(store, settings))

    _on_kafka(work)


@topics.command()
@guarded
def check() -> None:
    """
    Check topics, brokers and rights, and print one sentence for each problem.

    It changes nothing, and is part of `gateway check`. Lines that begin with `warning`, `not shown` or `info`
    are no reason to refuse a start; `not shown` names settings that the cluster keeps to itself. Exit codes:
    0 no problem, 1 Kafka does not answer, 2 a gateway would refuse to start, or warn in development. Advice
    goes to stderr, and does not count.

    Example: `gateway topics check`
    """
    _on_kafka(_check)


async def _settled(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Repeat the work until every broker knows a new topic. Raises RetriableError."""
    from dedupe.model.errors import RetriableError

    for _ in range(SETTLE_TRIES):
        try:
            await work()
            return
        except RetriableError:
            await asyncio.sleep(SETTLE_RETRY_S)
    await work()


async def _check(store: "LogStore", settings: "Settings") -> None:
    from app.stores import advice_for_kafka, inspect_kafka

    problems = await inspect_kafka(store, settings)
    for advice in await advice_for_kafka(store):
        note(f"advice: {advice}")
    for problem in problems:
        print(problem.text if problem.is_wrong else f"{problem.level.value}: {problem.text}")
    if any(problem.is_wrong for problem in problems):
        raise typer.Exit(EXIT_USAGE)


def _on_kafka(work: Work) -> None:
    async def run() -> None:
        from app.settings.model import Settings
        from app.settings.section import load
        from app.stores import open_for_notes
        from dedupe.model.errors import ConfigurationError

        settings = load(Settings)
        if settings.log.kind != "kafka":
            raise ConfigurationError("the embedded log has no topics to create: set GATEWAY_LOG=kafka")
        async with open_for_notes(settings) as store:
            await work(store, settings)

    run_quietly(run(), level="error")
