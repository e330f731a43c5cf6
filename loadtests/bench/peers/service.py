"""
The services that the gateway is compared with: simple HTTP services in front of Kafka.

    python -m loadtests.bench.peers.service --port P --bootstrap-servers H:P --topic T [--redis-port P]

They use FastAPI on uvicorn, httptools and uvloop, orjson, and aiokafka with idempotence, acks=all and whole
batches. The partition of an event follows from its id, as in the gateway. Without Redis every copy of an
event is stored. With Redis, `SET NX` claims an id before its event is produced: a crash between the two loses
the event, since its retry is treated as a duplicate.
"""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import orjson
import uvicorn
from aiokafka import AIOKafkaProducer
from fastapi import FastAPI, Request, Response

from tests.support.processes import HOST

WINDOW_S = 7 * 24 * 3600
BATCH_BYTES_MAX = 1_000_000
CONNECTIONS_MAX = 1_000
"""To Redis: its client refuses requests beyond 100 by default."""
DONE = orjson.dumps({"success": True})

Events = Sequence[dict[str, Any]]
Claim = Callable[[Events], Awaitable[Events]]


class Writer:
    """Writes events to their partitions, a batch each."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partitions: int) -> None:
        self._producer = producer
        self._topic = topic
        # Without a turn for each, waiters of `send_batch` crowd one another until they time out.
        self._turns = [asyncio.Lock() for _ in range(partitions)]

    async def write(self, events: Events) -> None:
        """Return once Kafka has acknowledged all."""
        shares: dict[int, Any] = defaultdict(self._producer.create_batch)
        for event in events:
            key = event["messageId"].encode()
            shares[crc32(key) % len(self._turns)].append(key=key, value=orjson.dumps(event), timestamp=None)
        await asyncio.gather(*(self._send(partition, share) for partition, share in shares.items()))

    async def _send(self, partition: int, share: Any) -> None:
        async with self._turns[partition]:
            sent = await self._producer.send_batch(share, self._topic, partition=partition)
        await sent


def claim_with(redis: Any) -> Claim:
    """Return a function that filters events whose ids were not claimed yet."""

    async def claim(events: Events) -> Events:
        pipeline = redis.pipeline(transaction=False)
        for event in events:
            pipeline.set(event["messageId"], b"1", nx=True, ex=WINDOW_S)
        return [event for event, is_new in zip(events, await pipeline.execute(), strict=True) if is_new]

    return claim


def create_service(bootstrap_servers: str, topic: str, claim: Claim | None) -> FastAPI:
    """Return the application; it connects when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers,
            acks="all",
            enable_idempotence=True,
            max_batch_size=BATCH_BYTES_MAX,
        ) as producer:
            app.state.writer = Writer(producer, topic, len(await producer.partitions_for(topic)))
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/batch")
    async def post_batch(request: Request) -> Response:
        events = orjson.loads(await request.body())["batch"]
        if claim is not None:
            events = await claim(events)
        await app.state.writer.write(events)
        return Response(DONE, media_type="application/json")

    return app


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--redis-port", type=int)
    args = parser.parse_args()
    claim = None
    if args.redis_port is not None:
        from redis.asyncio import Redis

        redis = Redis(host=HOST, port=args.redis_port, max_connections=CONNECTIONS_MAX)
        claim = claim_with(redis)
    uvicorn.run(
        create_service(args.bootstrap_servers, args.topic, claim),
        host=HOST,
        port=args.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
