package gateway

import com.google.gson.JsonElement
import com.google.gson.JsonObject
import com.google.gson.JsonParser

private val SESSION_IS_OVER = setOf("session_expired", "session_fenced")
private val ABOUT_THE_BODY = setOf("invalid_json", "batch_missing", "too_many_events", "request_too_large")
private val ABOUT_THE_ENCODING = setOf("unsupported_encoding", "body_not_decompressable")
private const val RETRY_AFTER_MAX_S = 300L

enum class Fate { DONE, AGAIN, REJECTED, SESSION_OVER }

/** An answer's word on one event. */
data class Verdict(val fate: Fate, val code: String = "", val message: String = "")

/** What to do with a batch after its answer. */
enum class Action { SETTLE, HALVE, AGAIN, AGAIN_LONG }

/** An answer, read whole. Names of headers have any case. */
class Answer(val status: Int, headers: Map<String, String>, val content: String) {
    private val headers = headers.mapKeys { it.key.lowercase() }

    /** Whether it is the gateway's, and not that of a proxy, a portal or another server. */
    val isGateways get() = !headers["gateway-request-id"].isNullOrEmpty()

    val source get() = if (isGateways) headers["gateway-source"].orEmpty() else ""

    /** The JSON object in it, or null. */
    private val document: JsonObject? by lazy {
        try {
            JsonParser.parseString(content) as? JsonObject
        } catch (_: RuntimeException) {
            null
        } catch (_: StackOverflowError) {
            null
        }
    }

    private val code get() = if (isGateways) document?.get("code").text.orEmpty() else ""

    /** What is asked for in whole seconds; a date counts as nothing. */
    val retryAfterS: Long
        get() {
            val text = headers["retry-after"].orEmpty()
            if (text.isEmpty() || !text.all { it in '0'..'9' }) return 0
            return (text.toLongOrNull() ?: RETRY_AFTER_MAX_S).coerceAtMost(RETRY_AFTER_MAX_S)
        }

    val action: Action
        get() = when {
            status == 413 -> Action.HALVE
            !isGateways -> Action.AGAIN
            status == 200 && document != null -> Action.SETTLE
            status == 400 && (code in ABOUT_THE_BODY || code.startsWith("body_too_")) -> Action.HALVE
            status == 401 || status == 403 -> Action.AGAIN_LONG
            else -> Action.AGAIN
        }

    /** Whether a smaller body, or another event, may get another answer. */
    val mayBeAboutTheBody get() = status in 400..499 && status !in setOf(401, 403, 408, 429)

    /** Whether the same body may be taken uncompressed. */
    val isAboutTheEncoding get() = status == 415 || code in ABOUT_THE_ENCODING

    /** Returns the verdict on each event of a batch; an event that the answer does not name is undecided. */
    fun verdicts(batch: Batch): List<Verdict> {
        val stored = objects("receipts").mapNotNull { it.get("sequence").whole }.toSet()
        val rejected = objects("rejected").mapNotNull { told -> told.get("index").whole?.let { it to told } }.toMap()
        return batch.events.indices.map { index ->
            if (batch.firstSequence + index in stored) Verdict(Fate.DONE) else verdict(rejected[index.toLong()])
        }
    }

    private fun verdict(told: JsonObject?): Verdict {
        val code = told?.get("code").text
        if (told == null || code == null || told.get("retriable").isTrue) return Verdict(Fate.AGAIN)
        val fate = if (code in SESSION_IS_OVER) Fate.SESSION_OVER else Fate.REJECTED
        return Verdict(fate, code, told.get("message").text.orEmpty())
    }

    private fun objects(name: String): List<JsonObject> {
        val found = document?.get(name)
        return if (found != null && found.isJsonArray) found.asJsonArray.filterIsInstance<JsonObject>() else emptyList()
    }

    override fun toString() = "$status ${content.take(200)}"
}

private val JsonElement?.text: String?
    get() = if (this != null && isJsonPrimitive && asJsonPrimitive.isString) asString else null

private val JsonElement?.isTrue: Boolean
    get() = this != null && isJsonPrimitive && asJsonPrimitive.isBoolean && asBoolean

private val JsonElement?.whole: Long?
    get() = if (this != null && isJsonPrimitive && asJsonPrimitive.isNumber) asString.toLongOrNull() else null

/** What becomes of the events of a batch. */
data class Settlement(
    /** Sequences of events that do not wait there any more. */
    val done: List<Long>,
    /** Of these, to go on in another session. */
    val moved: List<Queued>,
    val deadLetters: List<DeadLetter>,
    val doubtfulThrough: Long,
    val isSessionOver: Boolean,
)

/**
 * Returns what becomes of each event.
 *
 * What is stored of a session has no gaps, so what a session that is over refuses is not stored, and goes on
 * elsewhere: except behind an event that may have left its place empty, where nobody can tell.
 */
fun settlementOf(batch: Batch, verdicts: List<Verdict>): Settlement {
    val done = mutableListOf<Long>()
    val moved = mutableListOf<Queued>()
    val letters = mutableListOf<DeadLetter>()
    var doubtful = batch.doubtfulThrough
    for ((index, verdict) in verdicts.withIndex()) {
        val event = batch.events[index]
        val place = Place(batch.session, batch.firstSequence + index)
        val isOver = verdict.fate == Fate.SESSION_OVER
        if (verdict.fate != Fate.AGAIN) done += place.sequence
        if (isOver && place.sequence > doubtful) {
            moved += event.movedFrom(place)
        } else if (isOver || verdict.fate == Fate.REJECTED) {
            letters += DeadLetter(place, verdict.code, verdict.message, event.asJson())
        }
        if (place.sequence <= batch.sentBefore && (verdict.fate == Fate.REJECTED || event.hasId)) {
            doubtful = batch.sentBefore
        }
    }
    return Settlement(done, moved, letters, doubtful, verdicts.any { it.fate == Fate.SESSION_OVER })
}
