"""`gateway reshard`: by which rules the events of a log are spread over its partitions."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import guarded, note, run_quietly
from app.cli.options import DEFAULT_URL, Output, Token, Url, print_rows
from app.cli.plan_check import check_gateways
from dedupe.model.errors import GatewayError

if TYPE_CHECKING:
    from app.cli.resharding import Resharding

reshard = typer.Typer(
    name="reshard",
    help="Have the topic on Kafka more or fewer partitions, or take over a log of an older gateway.",
    no_args_is_help=True,
)

NOTICE_S = 600.0
"""Twice the time after which consumers of Kafka look for new partitions by default."""


@asynccontextmanager
async def _resharding(
    check_gateways: Callable[[float], None] = lambda _remembered_s: None,
) -> "AsyncIterator[Resharding]":
    from app.cli.resharding import Resharding, check_is_begun
    from app.settings.model import Settings
    from app.settings.section import load
    from app.settings.units import DAY
    from app.stores import create_indexes, divided, open_for_notes
    from dedupe.decide.layout import Layout
    from dedupe.model.clock import SystemClock
    from dedupe.model.identity import Identity
    from dedupe.storage.routing_records import routing_topic_of
    from dedupe.storage.settling import Settling

    settings = load(Settings)
    async with open_for_notes(settings) as opened:
        (store, add_partitions), topic = divided(opened), settings.log.topics[0]
        await check_is_begun(store, settings)
        identity = Identity(settings.gateway.identity_key)
        settling = Settling(store, topic, identity, SystemClock(), note)
        window_s = settings.index.window
        remembered_s = max(window_s, settings.index.session_lease) + DAY

        def check_fits(layout: Layout) -> None:
            create_indexes(settings.with_partitions(layout.partitions), layout, settling.clock)

        check = partial(check_gateways, remembered_s)
        names = routing_topic_of(topic.name), add_partitions
        yield Resharding(settling, *names, window_s, remembered_s, check_fits, check)


@reshard.command()
@guarded
def plan(
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="How many there shall be: a multiple of the first number."),
    ] = None,
    split: Annotated[
        int | None, typer.Option(min=0, max=1023, help="The one partition of which half shall move.")
    ] = None,
    notice: Annotated[
        float, typer.Option(min=0, help="Seconds between new partitions of Kafka and their first events.")
    ] = NOTICE_S,
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait until gateways have prepared new indexes.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would move and what it takes, and do nothing.")
    ] = False,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    force: Annotated[
        bool, typer.Option("--force", help="Do not ask the gateways whether they can follow the plan now.")
    ] = False,
) -> None:
    """
    Divide the clean topic on Kafka into more or fewer partitions, or a busy one in two.

    Gateways that run first read the new indexes of partitions that get slots, 30,000 records a second each,
    while they serve; this command tells how far they are. Then they go on by themselves, with the same
    settings: requests wait for about a second meanwhile, at most GATEWAY_ANSWER_TIMEOUT, then they are
    answered 503. A partition that no gateway divides within five seconds is divided by this command.
    GATEWAY_PARTITIONS stays what the topic began with. Ids, receipts and client sessions stay known. Where no
    gateway runs, and with --now, indexes are read after that, up to 100,000 records a second; events of these
    partitions get 503 until then. Kafka keeps partitions that have no slots any more; they rest. If this
    command ends early, gateways go on, and so does the same command. The way back is a plan of the number of
    before.

    It is refused while the gateway at --url, or a worker of its group, does not answer, is of an older
    version, or must not end now (see `gateway group`), for example since a partition has no standby; and if
    this command has a shorter window or session lease than that gateway, which would forget ids by the plan.
    Without --now it is also refused if new indexes follow from too many logs to be prepared, as where 32
    partitions become 2: it says in which steps it can be done.
    Exit codes: 0 divided, 1 the cluster does not answer, 2 it is refused, 3 the log is of another secret.

    Example: `gateway reshard plan --partitions 16 --dry-run`, then `gateway reshard plan --partitions 16`
    """

    async def run() -> None:
        from app.cli.resharding import Wanted

        client, wanted = AdminClient(url, admin_token), Wanted(partitions, split)
        check = () if force else (partial(check_gateways, client),)
        async with _resharding(*check) as resharding:
            await resharding.plan(wanted, notice_s=notice, is_dry=dry_run, is_now=now)
        note("nothing has changed" if dry_run else "gateways that run go on with all partitions")

    run_quietly(run())


@reshard.command()
@guarded
def close() -> None:
    """
    Have a plan of which no partition is divided yet end without effect.

    Exit codes: 0 it is closed, or none was open, 1 the cluster does not answer, 2 it is too late.

    Example: `gateway reshard close`
    """

    async def run() -> None:
        async with _resharding() as resharding:
            await resharding.close()

    run_quietly(run())


@reshard.command()
@guarded
def status(url: Url = DEFAULT_URL, admin_token: Token = None, output: Output = None) -> None:
    """
    List the partitions of the clean topic on Kafka, with their slots and what each inherits.

    A line has partition, slots (0: it rests), state, inherits (parts of logs that it reads before its own, in
    their order), begins (where each part of its own log begins, and the lane_seq of the first record there),
    lineage (as what its index counts the records that it inherits), counts (until when how many partitions
    had slots), lag (offsets of what it inherits that its owner has yet to read before it serves, as the
    gateway at --url knows; none if no gateway answers) and plan (how often the topic was planned anew). What
    happens next is said on stderr. The Spark audit takes the JSON.

    Example: `gateway reshard status`
    """

    async def run() -> None:
        async with _resharding() as resharding:
            rows, next_step = await resharding.status()
        lags, why = _lags_at(AdminClient(url, admin_token))
        print_rows([row | {"lag": lags.get(row["partition"])} for row in rows], output)
        note(next_step)
        note(why)

    run_quietly(run())


def _lags_at(client: AdminClient) -> tuple[dict[int, int], str]:
    """Return what partitions have yet to inherit, as a gateway knows, and a sentence on it."""
    try:
        partitions = client.ask("/admin/v1/partitions")["partitions"]
    except GatewayError as err:
        return {}, f"what partitions have yet to inherit is not known: {err}"
    lags = {each["partition"]: each["inherited_lag"] for each in partitions if each.get("inherits")}
    unknown = [number for number, lag in lags.items() if lag is None]
    if unknown:
        return lags, f"{len(unknown)} partitions have not begun to read what they inherit"
    if left := sum(lags.values()):
        return lags, f"{left:,} offsets of ancestors are yet to be read, before all partitions serve"
    return lags, "all partitions that gateways serve know what they inherit"


@reshard.command()
@guarded
def adopt() -> None:
    """
    Take over a log of an older gateway, or one whose routing topic is lost.

    The first records of each partition prove GATEWAY_IDENTITY_SECRET, GATEWAY_PARTITIONS and
    GATEWAY_QUARANTINE_PARTITIONS; then these are written into the log, as a first start does. What an older
    gateway has noted is taken along, and older gateways do not start on this log any more. It fences nobody,
    and changes nothing of a log that this version has begun. On Kafka the routing topic must be there:
    `gateway topics create`. Exit codes: 0 taken over, 1 the log does not answer, 2 a topic is missing or has
    records in other partitions, 3 the log is of another secret or partition count.

    Example: `gateway reshard adopt`
    """

    async def run() -> None:
        from app.cli.adoption import adopt as adopt_log
        from app.settings.model import Settings
        from app.settings.section import load
        from app.stores import open_for_notes

        settings = load(Settings)
        async with open_for_notes(settings) as store:
            proved = await adopt_log(store, settings)
        if proved is None:
            note("nothing to do: the log says by which rules it is written")
        else:
            note(f"{proved} records prove these settings; the log says so from now on")

    run_quietly(run())
