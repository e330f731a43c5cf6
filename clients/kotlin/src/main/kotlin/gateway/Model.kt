package gateway

import com.google.gson.Gson
import com.google.gson.GsonBuilder
import com.google.gson.JsonObject
import com.google.gson.JsonParser
import java.math.BigInteger
import java.security.SecureRandom

const val VERSION = "1.0.0"
const val BATCH_EVENTS = 100
const val BATCH_BYTES = 500_000
const val EVENT_BYTES_MAX = 700_000
const val EVENT_REFUSED = "event_refused"

internal val gson: Gson = GsonBuilder().serializeNulls().disableHtmlEscaping().create()

/** Identifies an event until it is stored. */
data class Place(val session: String, val sequence: Long) {
    /** The id of an event without one of its own, once it leaves this place. */
    val messageId get() = "$session-$sequence"
}

/** An event that will not be stored. */
data class DeadLetter(val place: Place, val code: String, val message: String, val event: JsonObject)

/** An event whose JSON never changes while it has its place. */
data class Queued(val content: String) {
    private val event: JsonObject get() = JsonParser.parseString(content).asJsonObject

    val hasId: Boolean by lazy { event.get("messageId")?.isJsonNull == false }

    fun asJson(): JsonObject = event

    /** Returns the event as it goes on in another session, with an id made of its first place. */
    fun movedFrom(place: Place): Queued =
        if (hasId) this else Queued(gson.toJson(event.apply { addProperty("messageId", place.messageId) }))

    companion object {
        /** Takes an event. Throws IllegalArgumentException if it has a sequence, or is too large. */
        fun of(event: JsonObject): Queued {
            require(!event.has("sequence")) { "an event's sequence is given by the client" }
            val content = gson.toJson(event)
            val bytes = content.toByteArray().size
            require(bytes <= EVENT_BYTES_MAX) { "an event may have $EVENT_BYTES_MAX bytes, and this one has $bytes" }
            return Queued(content)
        }
    }
}

/** Events of one session with consecutive sequences, the oldest that wait. */
data class Batch(
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

    fun half() = copy(events = events.take((events.size + 1) / 2), isLast = false)

    fun body(client: String, sentAt: String): String {
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
