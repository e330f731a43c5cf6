package gateway

import com.google.gson.JsonElement
import com.google.gson.JsonObject
import java.io.ByteArrayOutputStream
import java.io.IOException
import java.time.Instant
import java.util.logging.Level
import java.util.logging.Logger
import java.util.concurrent.locks.ReentrantLock
import java.util.zip.GZIPOutputStream
import kotlin.concurrent.withLock
import kotlin.math.min
import kotlin.math.pow
import kotlin.random.Random

private const val LINGER_MS = 200L
private const val BACKOFF_MS = 500.0
private const val BACKOFF_MAX_MS = 60_000.0
private const val KEY_REFUSED_PAUSE_MAX_MS = 600_000.0
private const val FLUSH_PAUSE_MAX_MS = 1_000L

/** A century: what is longer does not fit into nanoseconds. */
private const val FLUSH_MAX_MS = 3_155_760_000_000L
private const val ANSWER_TIMEOUT_MS = 15_000L

/** So slow may a network be: large bodies get more time. */
private const val UPLOAD_BYTES_PER_MS = 10
private const val GZIP_BYTES_MIN = 1_000
private const val CLOSE_GRACE_MS = 800L
private const val TELL_AGAIN_MS = 3_600_000L
private const val REFUSED_ALONE_MAX = 3

private val logger = Logger.getLogger("gateway-client")

/** What is kept beside the queue. */
private const val USER = "user"
private const val ANONYMOUS = "anonymous"
private const val OPTED_OUT = "opted_out"
private val NAMES_USER = setOf("identify", "alias")

/** What an application hears, from the client's thread. Callbacks may throw. */
interface Listener {
    fun onRejected(letter: DeadLetter) = Unit

    /** After the first failed try, then hourly; for each problem of the storage. */
    fun onProblem(err: Exception, since: Instant) = Unit
}

/** The gateway or what is before it has decided nothing. */
class UndecidedException(val answer: Answer) : IOException(answer.toString())

/** Events wait that belong to another source than that of the write key. */
class OtherSourceException(count: Int) : IOException("$count events wait for the write key of another source")

/** How long to wait before the next try; one that the gateway asks for is not cut short. */
private class Pause(val ms: Long, val isAsked: Boolean = false)

/**
 * Queues events in a storage, and delivers them from a thread of its own: see clients/PROTOCOL.md.
 *
 * Safe to use from several threads. `beforeSend` gets each event, and returns what is queued instead; null drops it.
 */
class Client(
    private val storage: Storage,
    private val transport: Transport,
    private val listener: Listener = object : Listener {},
    private val clock: Clock = SystemClock,
    private val connectivity: Connectivity = AlwaysOnline,
    private val beforeSend: ((JsonObject) -> JsonObject?)? = null,
) : Vocabulary(), AutoCloseable {
    private val lock = ReentrantLock()
    private val changed = lock.newCondition()
    private var isClosing = false
    private var waitingInFlush = 0
    private var isHurried = false
    private var batchEvents = BATCH_EVENTS
    private var refusedAlone = 0

    /** Whether a smaller part of the batch goes at once. */
    private var isHalved = false
    private var compresses = true
    private var failures = 0
    private var failingSince: Instant? = null
    private var toldAtMs = 0L
    private var waitingForOthers = 0

    /** No event is sent before the source of the key is known: its answer may be lost, and the key another one then. */
    private var mustAsk = true

    @Volatile
    var lastError: Exception? = null
        private set

    val clientId get() = storage.clientId

    /** The id of a user who is not known, until `reset`. */
    val anonymousId get() = lock.withLock { storage.setting(ANONYMOUS).ifEmpty { storage.clientId } }
    val isDurable get() = storage.isDurable
    val waiting get() = lock.withLock { storage.size }

    /** How long the oldest event has waited, by the clock; null if none waits. */
    val oldestAgeMs: Long?
        get() = lock.withLock { storage.oldestQueuedMs }?.let { maxOf(0, clock.nowMs() - it) }

    private val thread = Thread(::run, "gateway-client").apply { isDaemon = true }

    init {
        connectivity.onOnline { lock.withLock { hurry() } }
        thread.start()
    }

    /**
     * Queues one event of any type; null if it is not to be sent. Throws IllegalArgumentException if it is none, and
     * what the hook and the storage throw.
     */
    fun send(event: JsonObject): Place? = sendAll(listOf(event)).firstOrNull()

    /** Queues events in one commit. */
    fun sendAll(events: List<JsonObject>): List<Place> {
        val hook = beforeSend
        events.forEach(::requireShallow)
        val named = events.map(::withLibrary)
        val kept = if (hook == null || isOptedOut) named else named.mapNotNull { hook(Queued.of(it).asJson()) }
        val queued = kept.map(Queued::of)
        return lock.withLock {
            checkOpen()
            try {
                if (isOptedOut) emptyList() else storage.add(queued)
            } finally {
                changed.signalAll()
            }
        }
    }

    private fun checkOpen() = check(!isClosing) { "the client is closed" }

    override fun say(event: JsonObject): Place? = lock.withLock {
        checkOpen()
        val type = event.get("type").asString
        val userId = event.get("userId")?.asString
        val kept = storage.setting(USER)
        if (type == "alias" && !event.has("previousId")) event.addProperty("previousId", kept.ifEmpty { anonymousId })
        if (type in NAMES_USER && userId != null) {
            if (!isOptedOut) storage.keep(mapOf(USER to userId))
        } else if (userId == null && kept.isNotEmpty() && !event.has("anonymousId")) {
            event.addProperty("userId", kept)
        }
        val isNamed = event.has("userId") && type != "identify"
        if (!isNamed && !event.has("anonymousId")) event.addProperty("anonymousId", anonymousId)
        send(event)
    }

    /** Forgets the user, at logout: who comes next has another anonymous id. */
    fun reset() = lock.withLock { storage.keep(mapOf(USER to "", ANONYMOUS to newClientId())) }

    /** Deletes all that is queued and kept, and drops what is queued later, also by later processes. */
    fun optOut() = lock.withLock {
        try {
            storage.deleteAll(mapOf(OPTED_OUT to "1"))
        } finally {
            changed.signalAll()
        }
    }

    /** Takes events again. */
    fun optIn() = lock.withLock { storage.keep(mapOf(OPTED_OUT to "")) }

    private val isOptedOut get() = lock.withLock { storage.setting(OPTED_OUT).isNotEmpty() }

    /** Tries at once, and returns whether nothing waits within the time. */
    fun flush(timeoutMs: Long): Boolean = lock.withLock {
        if (Thread.currentThread() === thread) return storage.size == 0
        val end = System.nanoTime() + timeoutMs.coerceIn(0, FLUSH_MAX_MS) * 1_000_000
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
        try {
            flush(timeoutMs)
        } finally {
            lock.withLock {
                isClosing = true
                changed.signalAll()
            }
            if (Thread.currentThread() !== thread) end(thread)
        }
        return storage.size == 0
    }

    private fun end(thread: Thread) {
        try {
            thread.join(CLOSE_GRACE_MS)
            transport.abort()
            thread.join(200)
        } finally {
            closeStorage() // a thread that still waits, in a callback, finds it closed
        }
    }

    private fun closeStorage() = lock.withLock { runCatching { storage.close() } }

    override fun close() {
        close(5_000)
    }

    /** Returns the events that will not be stored, oldest first. */
    fun deadLetters(): List<DeadLetter> = lock.withLock { storage.deadLetters() }

    /** Queues all dead letters that can be read again, and returns how many these are. */
    fun retryDeadLetters(): Int = lock.withLock { storage.retryDeadLetters().also { changed.signalAll() } }

    // ---- the thread

    private fun run() {
        do {
            val goesOn = try {
                tellOfStorage()
                waitForEvents().also { if (it) sleep(tryOnce()) }
            } catch (err: Throwable) { // an interrupt by a callback, an error of the platform: they may not end this thread
                logger.log(Level.WARNING, "an unforeseen error", err)
                runCatching { Thread.sleep(BACKOFF_MS.toLong()) }
                !isClosing
            }
        } while (goesOn)
        runCatching { sayFarewell() }
        closeStorage()
    }

    private fun tryOnce(): Pause = try {
        deliver()
        Pause(0)
    } catch (err: Throwable) {
        pauseAfter(if (err is Exception) err else IOException(err))
    }

    private fun waitForEvents(): Boolean = lock.withLock {
        while (!isClosing && storage.problems.isEmpty() && (storage.size == 0 || !connectivity.isOnline)) changed.await()
        if (!isClosing && waitingInFlush == 0 && storage.size < BATCH_EVENTS) {
            changed.awaitNanos(LINGER_MS * 1_000_000)
        }
        !isClosing
    }

    private fun tellOfStorage() {
        while (true) tell(storage.problems.poll() ?: return)
    }

    private fun tell(err: Exception, since: Instant = Instant.ofEpochMilli(clock.nowMs())) {
        logger.warning("since $since: $err")
        runCatching { listener.onProblem(err, since) }
    }

    /** Sends one batch once. */
    private fun deliver() {
        if (waiting == 0) return
        if (mustAsk || refusedAlone > 0) ask()
        val batch = lock.withLock { storage.nextBatch(batchEvents, isClosing)?.also(storage::noteSent) } ?: return
        val answer = post(batch)
        val verdicts = verdictsOf(batch, answer) ?: throw UndecidedException(answer)
        val settlement = settlementOf(batch, verdicts)
        lock.withLock { storage.settle(batch, settlement) }
        for (letter in settlement.deadLetters) {
            logger.warning("${letter.place} will not be stored: ${letter.code}, ${letter.message}")
            runCatching { listener.onRejected(letter) }
        }
        if (verdicts.any { it.fate == Fate.AGAIN }) throw IOException("some events were not taken yet")
        failures = 0
        failingSince = null
        lastError = null
        batchEvents = min(BATCH_EVENTS, batchEvents + maxOf(1, batchEvents / 4))
    }

    /** Returns the verdicts of an answer, or null; halves what is not taken, down to an event that is refused alone. */
    private fun verdictsOf(batch: Batch, answer: Answer): List<Verdict>? {
        if (answer.action == Action.SETTLE) {
            refusedAlone = 0
            return answer.verdicts(batch)
        }
        if (answer.isAboutTheEncoding && compresses) {
            compresses = false
            return null
        }
        if (answer.action == Action.AGAIN_LONG || answer.action == Action.AGAIN && !answer.mayBeAboutTheBody) return null
        batchEvents = maxOf(1, batch.events.size / 2)
        if (batch.events.size > 1) {
            isHalved = answer.action == Action.HALVE
            return null
        }
        val isSure = answer.action == Action.HALVE && answer.isGateways // others may say so of every request
        if (!isSure && ++refusedAlone <= REFUSED_ALONE_MAX) return null
        refusedAlone = 0
        val code = if (batch.events.single().isDamaged) EVENT_DAMAGED else EVENT_REFUSED
        return listOf(Verdict(Fate.REJECTED, code, answer.toString()))
    }

    private fun post(batch: Batch): Answer {
        val plain = batch.body(now()).toByteArray()
        val isGzip = compresses && plain.size >= GZIP_BYTES_MIN
        val body = if (isGzip) gzip(plain) else plain
        val answer = try {
            transport.post(body, ANSWER_TIMEOUT_MS + body.size / UPLOAD_BYTES_PER_MS, isGzip)
        } catch (err: NoConnectionException) {
            throw err
        } catch (err: IOException) { // perhaps for the body's size
            batchEvents = maxOf(1, batch.events.size / 2)
            throw err
        }
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
        if (answer.source.isEmpty()) return
        val others = lock.withLock { storage.learn(answer.source) }
        if (others > waitingForOthers) tell(OtherSourceException(others))
        waitingForOthers = others
    }

    /** Returns a pause with full jitter, longer after each failure, and not shorter than asked for. */
    private fun pauseAfter(err: Exception): Pause {
        val answer = (err as? UndecidedException)?.answer
        lastError = err
        if (isHalved) return Pause(0).also { isHalved = false }
        failures++
        val (base, longest) = if (answer?.action == Action.AGAIN_LONG) 4.0 to KEY_REFUSED_PAUSE_MAX_MS else 2.0 to BACKOFF_MAX_MS
        val pauseMs = Random.nextDouble(0.0, min(longest, BACKOFF_MS * base.pow(min(failures, 20)))).toLong()
        val since = failingSince ?: Instant.ofEpochMilli(clock.nowMs()).also { failingSince = it }
        if (failures == 1 || System.nanoTime() / 1_000_000 - toldAtMs >= TELL_AGAIN_MS) {
            toldAtMs = System.nanoTime() / 1_000_000
            tell(err, since)
        }
        val askedMs = 1000 * (answer?.retryAfterS ?: 0)
        return Pause(maxOf(pauseMs, askedMs), isAsked = askedMs > 0 && answer?.isGateways == true)
    }

    /** Waits before the next try, shorter for who waits in `flush`. */
    private fun sleep(pause: Pause) = lock.withLock {
        changed.signalAll()
        val isHeldUp = waitingInFlush > 0 && !pause.isAsked
        var left = (if (isHeldUp) min(pause.ms, FLUSH_PAUSE_MAX_MS) else pause.ms) * 1_000_000
        while (left > 0 && !isClosing && (pause.isAsked || !isHurried)) left = changed.awaitNanos(left)
        isHurried = false
    }

    /** Tells the gateway that this run's session is over. */
    private fun sayFarewell() {
        val batch = lock.withLock { storage.lastBatch() } ?: return
        transport.post(batch.body(now()).toByteArray(), CLOSE_GRACE_MS)
    }

    private fun hurry() {
        isHurried = true
        changed.signalAll()
    }

    override fun now(): String = Instant.ofEpochMilli(clock.nowMs()).toString()

    private fun withLibrary(event: JsonObject): JsonObject {
        val context = event.get("context") ?: JsonObject()
        if (context !is JsonObject || context.has("library")) return event
        val library = JsonObject().apply {
            addProperty("name", "gateway-client-kotlin")
            addProperty("version", VERSION)
        }
        return event.with("context", context.with("library", library))
    }
}

/** Returns a copy, whose parts are the same, with one more. */
private fun JsonObject.with(name: String, value: JsonElement) = JsonObject().also { copy ->
    entrySet().forEach { (key, part) -> copy.add(key, part) }
    copy.add(name, value)
}

private fun gzip(content: ByteArray): ByteArray {
    val compressed = ByteArrayOutputStream()
    GZIPOutputStream(compressed).use { it.write(content) }
    return compressed.toByteArray()
}
