/**
 * A client that loses no event and has none stored twice: it keeps each in IndexedDB until the gateway
 * has it. The twin of clients/python/gateway_client.py; README.md says what a page must know.
 *
 * An event gets its place, a sequence in a client session, in the tick in which it is queued, and in the
 * transaction that makes it durable; it keeps that place however often it is sent. Each tab numbers its
 * events in a session of its own, over reloads, and holds a Web Lock named after it, so it numbers them in
 * memory: a page that is being left has no time to read. The queue of a tab that is gone has no such
 * lock, and any other tab delivers it. Batches of a session go out one at a time, oldest first, so what is
 * stored of it has no gaps and the 512 sequences that the gateway takes ahead of its watermark are never
 * exceeded.
 *
 * This file is joined from src by build.mjs. It needs no other and no build step.
 */
