package gateway

import com.google.gson.Gson
import com.google.gson.GsonBuilder
import com.google.gson.JsonArray
import com.google.gson.JsonElement
import com.google.gson.JsonObject
import com.google.gson.JsonParser
import com.google.gson.Strictness
import java.io.Writer
import java.math.BigInteger
import java.security.SecureRandom
import java.util.Collections
import java.util.IdentityHashMap

const val VERSION = "1.0.0"
const val BATCH_EVENTS = 100
const val BATCH_BYTES = 500_000
const val EVENT_BYTES_MAX = 700_000

/** Codes of dead letters that the gateway has no copy of: what nobody takes, what cannot be read any more. */
const val EVENT_REFUSED = "event_refused"
const val EVENT_DAMAGED = "event_damaged"

private const val DEPTH_MAX = 1_000
private const val TOO_LARGE = "an event may have $EVENT_BYTES_MAX bytes, and this one has more"
private const val NO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff"

/** NaN and infinities are an IllegalArgumentException: JSON has none. */
internal val gson: Gson =
    GsonBuilder().serializeNulls().disableHtmlEscaping().setStrictness(Strictness.STRICT).create()

/** Identifies an event until it is stored. */
data class Place(val session: String, val sequence: Long) {
    /** The id of an event without one of its own, once it leaves this place. */
    val messageId get() = "$session-$sequence"
}

/** An event that will not be stored. */
data class DeadLetter(val place: Place, val code: String, val message: String, val event: JsonObject)

/** An event whose JSON never changes while it has its place; `queuedAtMs` is by the clock, 0 if nobody has noted it. */
data class Queued(val content: String, val queuedAtMs: Long = 0) {
    /** Whether it has an id of its own: one of nothing but white space is none to the gateway. */
    val hasId: Boolean by lazy {
        val id = asJson().get("messageId")
        id != null && !id.isJsonNull && !(id.isJsonPrimitive && id.asString.all { it.isWhitespace() || it in NO_WIDTH })
    }

    val isDamaged get() = parsed() == null

    /** Returns the event; content that is damaged is text under `unreadable`. */
    fun asJson(): JsonObject = parsed() ?: JsonObject().apply { addProperty("unreadable", content) }

    private fun parsed(): JsonObject? = try {
        JsonParser.parseString(content).asJsonObject
    } catch (_: RuntimeException) {
        null
    }

    /** Returns the event as it goes on in another session, with an id made of its first place. */
    fun movedFrom(place: Place): Queued =
        if (hasId) this else copy(content = gson.toJson(asJson().apply { addProperty("messageId", place.messageId) }))

    companion object {
        /** Takes an event that was queued before, whatever its size is now. */
        internal fun again(event: JsonObject) = Queued(gson.toJson(event))

        /** Takes an event. Throws IllegalArgumentException if it is no JSON, has a sequence, or is too large. */
        fun of(event: JsonObject): Queued {
            require(!event.has("sequence")) { "an event's sequence is given by the client" }
            requireShallow(event)
            val content = StringBuilder()
            gson.toJson(event, Bounded(content))
            require(content.toString().toByteArray().size <= EVENT_BYTES_MAX) { TOO_LARGE }
            return Queued(content.toString())
        }
    }
}

/** Throws IllegalArgumentException if other threads, whose stacks may be smaller, could not write it: it may be in itself. */
internal fun requireShallow(event: JsonElement) {
    var level: Collection<JsonElement> = listOf(event)
    repeat(DEPTH_MAX) {
        val next = Collections.newSetFromMap(IdentityHashMap<JsonElement, Boolean>())
        for (of in level) {
            if (of is JsonObject) next += of.asMap().values
            if (of is JsonArray) next += of.asList()
        }
        if (next.isEmpty()) return
        level = next
    }
    throw IllegalArgumentException("an event may not be nested so deep")
}

/** Ends what is written once it is more than an event may be: it may have a part a million times. */
private class Bounded(private val to: StringBuilder) : Writer() {
    override fun write(from: CharArray, offset: Int, length: Int) {
        require(to.length + length <= EVENT_BYTES_MAX) { TOO_LARGE }
        to.appendRange(from, offset, offset + length)
    }

    override fun flush() = Unit

    override fun close() = Unit
}

/** Events of one session with consecutive sequences, the oldest that wait. */
data class Batch(
    val client: String,
    val session: String,
    val firstSequence: Long,
    val events: List<Queued>,
    /** Sequences up to it may have been sent before. */
    val sentBefore: Long,
    /** Sequences up to it may be stored or not once the session is over. */
    val doubtfulThrough: Long,
    /** Whether the session gets no events after these. */
    val isLast: Boolean = false,
) {
    val lastSequence get() = firstSequence + events.size - 1

    fun body(sentAt: String): String {
        val batch = events.joinToString(",") { it.content }
        val ended = if (isLast) ",\"ended\":true" else ""
        return "{\"client\":${gson.toJson(client)},\"session\":\"$session\",\"acknowledgedThrough\":${firstSequence - 1}," +
            "\"firstSequence\":$firstSequence,\"sentAt\":\"$sentAt\"$ended,\"batch\":[$batch]}"
    }
}

private const val KSUID_EPOCH_S = 1_400_000_000L
private const val BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
private val random = SecureRandom()

/** Returns a new KSUID: 4 bytes of time, which sort it roughly, and 16 random ones, in base 62. */
fun ksuid(nowMs: Long): String {
    var number = BigInteger.valueOf((nowMs / 1000 - KSUID_EPOCH_S).coerceIn(0, 0xffff_ffffL))
    number = number.shiftLeft(128).or(BigInteger(128, random))
    val digits = CharArray(27)
    for (place in 26 downTo 0) {
        val (rest, digit) = number.divideAndRemainder(BigInteger.valueOf(62))
        digits[place] = BASE62[digit.toInt()]
        number = rest
    }
    return String(digits)
}

/** Returns a random name of an installation. */
fun newClientId(): String = ByteArray(16).also(random::nextBytes).joinToString("") { "%02x".format(it) }
