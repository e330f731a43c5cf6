package gateway

import java.io.IOException
import java.net.ConnectException
import java.net.URI
import java.net.http.HttpClient
import java.net.http.HttpConnectTimeoutException
import java.net.http.HttpRequest
import java.net.http.HttpResponse
import java.time.Duration
import java.util.Base64
import java.util.Queue
import java.util.concurrent.CompletableFuture
import java.util.concurrent.Flow
import java.util.concurrent.TimeUnit

const val ANSWER_BYTES_MAX = 1 shl 20

/** Where events wait. Android's own SQLite fits as well as the JDBC driver's. Methods are called by one thread at a time. */
interface Storage : AutoCloseable {
    val clientId: String
    val isDurable: Boolean

    /** What has gone wrong with the storage, until somebody is told. */
    val problems: Queue<Exception>

    /** How many events wait that may be sent: those of other sources may not, once that of the key is known. */
    val size: Int

    /** When the event that is sent next was queued, by the clock; null without one, or if nobody has noted it. */
    val oldestQueuedMs: Long?

    /** Queues events in one durable commit. Throws QueueFullException if more would wait than may. */
    fun add(events: List<Queued>): List<Place>

    /** Notes the source of the key, as an answer tells it; returns how many events wait for another one's. */
    fun learn(source: String): Int

    /** Returns the oldest events that may be sent; writes nothing. */
    fun nextBatch(eventsMax: Int, isClosing: Boolean): Batch?

    /** Notes in memory that a batch is being sent. */
    fun noteSent(batch: Batch)

    /** Does in one commit what a settlement says. */
    fun settle(batch: Batch, settlement: Settlement)

    fun deadLetters(): List<DeadLetter>

    /** Queues in one commit all dead letters that can be read again, with ids made of their first places; returns how many. */
    fun retryDeadLetters(): Int

    /** Returns a value that is kept beside the queue; "" without one. */
    fun setting(name: String): String

    /** Keeps values durably. */
    fun keep(values: Map<String, String>)

    /**
     * Deletes events, also those that are being sent, dead letters, and all that is kept but these values, so that
     * nothing of them can be read from the disk. The installation gets another client id.
     */
    fun deleteAll(kept: Map<String, String>)

    /** Returns an empty batch that ends this run's session; null if it has none, or if events wait in it. */
    fun lastBatch(): Batch?
}

/** More events wait than may: none of the call's was queued, or the oldest were dropped for them. */
class QueueFullException(message: String) : IllegalStateException(message)

/** No request was sent, so its size is not the reason. */
class NoConnectionException(cause: Throwable) : IOException("no connection: $cause", cause)

/** Sends a request. Throws NoConnectionException, or IOException if there is no whole answer within the time. */
interface Transport {
    /** `isGzip` is whether the body is compressed: then the request says so in `Content-Encoding`. */
    fun post(body: ByteArray, timeoutMs: Long, isGzip: Boolean = false): Answer

    /** Ends what is under way. */
    fun abort()
}

interface Clock {
    fun nowMs(): Long
}

/** Tells whether a try has a chance; Android's ConnectivityManager calls `onOnline`. */
interface Connectivity {
    val isOnline: Boolean

    fun onOnline(listener: () -> Unit)
}

object SystemClock : Clock {
    override fun nowMs() = System.currentTimeMillis()
}

object AlwaysOnline : Connectivity {
    override val isOnline = true

    override fun onOnline(listener: () -> Unit) = Unit
}

/** Sends by java.net.http. */
class JdkTransport(url: String, writeKey: String) : Transport {
    private val http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(5)).build()
    private val authorization = "Basic " + Base64.getEncoder().encodeToString("$writeKey:".toByteArray())
    private val target = URI("${url.trimEnd('/')}/v1/events")

    @Volatile
    private var current: CompletableFuture<*>? = null

    init {
        require(target.scheme in setOf("http", "https") && target.host != null) { "not the URL of a gateway: $url" }
        require(writeKey.isNotEmpty()) { "the write key is missing" }
    }

    override fun post(body: ByteArray, timeoutMs: Long, isGzip: Boolean): Answer {
        val request = HttpRequest.newBuilder(target)
            .timeout(Duration.ofMillis(timeoutMs))
            .header("Authorization", authorization)
            .header("Content-Type", "application/json")
            .header("User-Agent", "gateway-client-kotlin/$VERSION")
            .POST(HttpRequest.BodyPublishers.ofByteArray(body))
            .apply { if (isGzip) header("Content-Encoding", "gzip") }
            .build()
        val answer = http.sendAsync(request) { BoundedBody() }
        current = answer
        try {
            val response = answer.get(timeoutMs, TimeUnit.MILLISECONDS)
            val headers = response.headers().map().mapValues { it.value.last() }
            return Answer(response.statusCode(), headers, String(response.body()))
        } catch (err: Exception) {
            val cause = err.cause ?: err
            if (cause is ConnectException || cause is HttpConnectTimeoutException) throw NoConnectionException(cause)
            throw IOException("no answer: $cause", err)
        } finally {
            answer.cancel(true)
        }
    }

    override fun abort() {
        current?.cancel(true)
    }
}

/** Reads a body of at most ANSWER_BYTES_MAX. */
private class BoundedBody : HttpResponse.BodySubscriber<ByteArray> {
    private val whole = HttpResponse.BodySubscribers.ofByteArray()
    private lateinit var subscription: Flow.Subscription
    private var size = 0

    override fun getBody() = whole.body

    override fun onSubscribe(subscription: Flow.Subscription) {
        this.subscription = subscription
        whole.onSubscribe(subscription)
    }

    override fun onNext(item: List<java.nio.ByteBuffer>) {
        size += item.sumOf { it.remaining() }
        if (size <= ANSWER_BYTES_MAX) return whole.onNext(item)
        subscription.cancel()
        whole.onError(IOException("the answer has more than $ANSWER_BYTES_MAX bytes"))
    }

    override fun onError(err: Throwable) = whole.onError(err)

    override fun onComplete() = whole.onComplete()
}
