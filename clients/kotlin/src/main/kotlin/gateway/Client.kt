package gateway

import com.google.gson.JsonObject
import java.io.IOException
import java.time.Instant
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock
import kotlin.math.min
import kotlin.math.pow
import kotlin.random.Random

private const val LINGER_MS = 200L
private const val BACKOFF_MS = 500.0
private const val BACKOFF_MAX_MS = 60_000.0
private const val KEY_REFUSED_PAUSE_MAX_MS = 600_000.0
private const val FLUSH_PAUSE_MAX_MS = 1_000L
private const val ANSWER_TIMEOUT_MS = 15_000L
private const val CLOSE_GRACE_MS = 800L
private const val TELL_AGAIN_MS = 3_600_000L
private const val REFUSED_ALONE_MAX = 3

/** What an application hears, from the client's thread. Callbacks may throw. */
interface Listener {
    fun onRejected(letter: DeadLetter) = Unit

    /** After the first failed try, then hourly; for each problem of the storage. */
    fun onProblem(err: Exception, since: Instant) = Unit
}

/** The gateway or what is before it has decided nothing. */
class UndecidedException(val answer: Answer) : IOException(answer.toString())

/**
 * Queues events in a storage, and delivers them from a thread of its own: see clients/PROTOCOL.md.
 *
 * Safe to use from several threads.
 */
class Client(
    private val storage: Storage,
    private val transport: Transport,
    private val listener: Listener = object : Listener {},
    private val clock: Clock = SystemClock,
    private val connectivity: Connectivity = AlwaysOnline,
) : AutoCloseable {
    private val lock = ReentrantLock()
    private val changed = lock.newCondition()
    private var isClosing = false
    private var waitingInFlush = 0
    private var isHurried = false
    private var batchEvents = BATCH_EVENTS
    private var refusedAlone = 0
    private var failures = 0
    private var failingSince: Instant? = null
    private var toldAtMs = 0L
    private var source = ""
    private var mustAsk = storage.hasSources

    @Volatile
    var lastError: Exception? = null
        private set

    val clientId get() = storage.clientId
    val isDurable get() = storage.isDurable
    val waiting get() = lock.withLock { storage.size }

    private val thread = Thread(::run, "gateway-client").apply { isDaemon = true }

    init {
        connectivity.onOnline { lock.withLock { hurry() } }
        thread.start()
    }

    /** Queues an action of a user, now. Returns once it is durable. */
    fun track(event: String, userId: String? = null, properties: JsonObject = JsonObject()): Place {
        val document = JsonObject()
        document.addProperty("type", "track")
        document.addProperty("event", event)
        document.addProperty(if (userId == null) "anonymousId" else "userId", userId ?: clientId)
        document.add("properties", properties)
        document.addProperty("timestamp", now())
        return send(document)
    }

    /** Queues one event of any type. Throws IllegalArgumentException if it is none, and what the storage throws. */
    fun send(event: JsonObject): Place = sendAll(listOf(event)).single()

    /** Queues events in one commit. */
    fun sendAll(events: List<JsonObject>): List<Place> {
        val queued = events.map { Queued.of(withLibrary(it)) }
        return lock.withLock {
            check(!isClosing) { "the client is closed" }
            storage.add(queued).also { changed.signalAll() }
        }
    }

    /** Tries at once, and returns whether nothing waits within the time. */
    fun flush(timeoutMs: Long): Boolean = lock.withLock {
        val end = System.nanoTime() + timeoutMs * 1_000_000
        waitingInFlush++
        hurry()
        try {
            while (storage.size > 0) {
                val left = end - System.nanoTime()
                if (left <= 0 || !thread.isAlive) return storage.size == 0
                changed.awaitNanos(left)
            }
            true
        } finally {
            waitingInFlush--
        }
    }

    /** Delivers for so long, then ends within a second; returns whether nothing is left. */
    fun close(timeoutMs: Long): Boolean {
        val isEmpty = flush(timeoutMs)
        lock.withLock {
            isClosing = true
            changed.signalAll()
        }
        if (Thread.currentThread() !== thread) {
            thread.join(CLOSE_GRACE_MS)
            transport.abort()
            thread.join(200)
        }
        lock.withLock { runCatching { storage.close() } }
        return isEmpty
    }

    override fun close() {
        close(5_000)
    }

    fun deadLetters(): List<DeadLetter> = lock.withLock { storage.deadLetters() }

    // ---- the thread

    private fun run() {
        while (waitForEvents()) {
            val pauseMs = try {
                deliver()
            } catch (err: Throwable) {
                pauseAfter(if (err is Exception) err else IOException(err))
            }
            sleep(pauseMs)
        }
        runCatching { end() }
    }

    private fun waitForEvents(): Boolean = lock.withLock {
        while (!isClosing && (storage.size == 0 || !connectivity.isOnline)) changed.await()
        if (!isClosing && waitingInFlush == 0 && storage.size < BATCH_EVENTS) {
            changed.awaitNanos(LINGER_MS * 1_000_000)
        }
        !isClosing
    }

    /** Sends one batch once; returns the pause before the next. */
    private fun deliver(): Long {
        if (mustAsk || refusedAlone > 0) ask()
        val batch = lock.withLock { storage.nextBatch(batchEvents, source, isClosing)?.also(storage::noteSent) }
            ?: throw IOException("events wait that belong to another source than that of the write key")
        val answer = post(batch)
        val verdicts = verdictsOf(batch, answer) ?: throw UndecidedException(answer)
        val settlement = settlementOf(batch, verdicts)
        lock.withLock { storage.settle(batch, settlement, answer.source.ifEmpty { source }) }
        settlement.deadLetters.forEach { letter -> runCatching { listener.onRejected(letter) } }
        if (verdicts.any { it.fate == Fate.AGAIN }) throw IOException("some events were not taken yet")
        failures = 0
        failingSince = null
        lastError = null
        batchEvents = min(BATCH_EVENTS, batchEvents + maxOf(1, batchEvents / 4))
        return 0
    }

    /** Returns the verdicts of an answer, or null; halves what is not taken, down to an event that is refused alone. */
    private fun verdictsOf(batch: Batch, answer: Answer): List<Verdict>? {
        if (answer.action == Action.SETTLE) {
            refusedAlone = 0
            return answer.verdicts(batch)
        }
        if (answer.action == Action.AGAIN_LONG || answer.action == Action.AGAIN && !answer.mayBeAboutTheBody) return null
        batchEvents = maxOf(1, batch.events.size / 2)
        if (batch.events.size > 1) return null
        if (answer.action == Action.AGAIN && ++refusedAlone <= REFUSED_ALONE_MAX) return null
        refusedAlone = 0
        return listOf(Verdict(Fate.REJECTED, EVENT_REFUSED, answer.toString()))
    }

    private fun post(batch: Batch): Answer {
        val answer = transport.post(batch.body(clientId, now()).toByteArray(), ANSWER_TIMEOUT_MS)
        learn(answer)
        return answer
    }

    /** Sends no event, to learn whether it is the gateway that answers, and for which source. */
    private fun ask() {
        val answer = transport.post("{\"batch\":[]}".toByteArray(), ANSWER_TIMEOUT_MS)
        learn(answer)
        if (!answer.isGateways || answer.status != 200) throw UndecidedException(answer)
        mustAsk = false
    }

    private fun learn(answer: Answer) {
        if (answer.source.isNotEmpty()) source = answer.source
    }

    /** Returns a pause with full jitter, longer after each failure, and not shorter than asked for. */
    private fun pauseAfter(err: Exception): Long {
        val answer = (err as? UndecidedException)?.answer
        lastError = err
        if (answer?.action == Action.HALVE) return 0
        failures++
        val (base, longest) = if (answer?.action == Action.AGAIN_LONG) 4.0 to KEY_REFUSED_PAUSE_MAX_MS else 2.0 to BACKOFF_MAX_MS
        var pauseMs = Random.nextDouble(0.0, min(longest, BACKOFF_MS * base.pow(min(failures, 20)))).toLong()
        if (lock.withLock { waitingInFlush > 0 }) pauseMs = min(pauseMs, FLUSH_PAUSE_MAX_MS)
        val since = failingSince ?: Instant.ofEpochMilli(clock.nowMs()).also { failingSince = it }
        if (failures == 1 || System.nanoTime() / 1_000_000 - toldAtMs >= TELL_AGAIN_MS) {
            toldAtMs = System.nanoTime() / 1_000_000
            runCatching { listener.onProblem(err, since) }
        }
        return maxOf(pauseMs, 1000 * (answer?.retryAfterS ?: 0))
    }

    private fun sleep(pauseMs: Long) = lock.withLock {
        changed.signalAll()
        var left = pauseMs * 1_000_000
        while (left > 0 && !isClosing && !isHurried) left = changed.awaitNanos(left)
        isHurried = false
    }

    /** Tells the gateway that this run's session is over. */
    private fun end() {
        val batch = lock.withLock { storage.lastBatch() } ?: return
        transport.post(batch.body(clientId, now()).toByteArray(), CLOSE_GRACE_MS)
    }

    private fun hurry() {
        isHurried = true
        changed.signalAll()
    }

    private fun now() = Instant.ofEpochMilli(clock.nowMs()).toString()

    private fun withLibrary(event: JsonObject): JsonObject {
        val context = event.get("context") ?: JsonObject()
        if (context !is JsonObject || context.has("library")) return event
        val library = JsonObject().apply {
            addProperty("name", "gateway-client-kotlin")
            addProperty("version", VERSION)
        }
        return event.deepCopy().apply { add("context", context.deepCopy().apply { add("library", library) }) }
    }
}
