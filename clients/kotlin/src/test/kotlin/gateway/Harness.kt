package gateway.tests

import com.google.gson.Gson
import com.google.gson.JsonArray
import com.google.gson.JsonObject
import com.google.gson.JsonParser
import gateway.Client
import gateway.JdkTransport
import gateway.Listener
import gateway.SqliteStorage
import gateway.WhenFull
import java.time.Instant

private val listener = object : Listener {
    override fun onProblem(err: Exception, since: Instant) = System.err.println("problem since $since: $err")
}

/** Drives the client by lines of JSON: those of clients/conformance/README.md, and one for each call besides. */
fun main() {
    val gson = Gson()
    var client: Client? = null
    for (line in generateSequence(::readLine)) {
        val command = JsonParser.parseString(line).asJsonObject
        if (command["do"].asString == "open") client = open(command)
        println(gson.toJson(answer(client!!, command)))
    }
}

private fun open(command: JsonObject): Client {
    val eventsMax = command["eventsMax"]?.asInt ?: 100_000
    val whenFull = if (command["dropsOldest"]?.asBoolean == true) WhenFull.DROP_OLDEST else WhenFull.THROW
    val storage = SqliteStorage.open(command["path"].asString, eventsMax = eventsMax, whenFull = whenFull)
    val transport = JdkTransport(command["url"].asString, command["key"].asString)
    return Client(storage, transport, listener, beforeSend = ::withoutHidden)
}

/** A hook: marks what has `hidden`, and drops it if that is true. */
private fun withoutHidden(event: JsonObject): JsonObject? {
    val hidden = event.get("properties")?.takeIf { it.isJsonObject }?.asJsonObject?.get("hidden") ?: return event
    return if (hidden.asBoolean) null else event.apply { addProperty("seen", true) }
}

private fun answer(client: Client, command: JsonObject): Any = when (val name = command["do"].asString) {
    "open" -> mapOf("client" to client.clientId)
    "track" -> {
        val places = client.sendAll(command.getAsJsonArray("events").map { it as JsonObject })
        mapOf("places" to places.map { listOf(it.session, it.sequence) })
    }
    "flush" -> mapOf("flushed" to client.flush(command["timeoutMs"].asLong))
    "close" -> mapOf("closed" to client.close(command["timeoutMs"].asLong))
    "deadLetters" -> mapOf("letters" to client.deadLetters().map { mapOf("code" to it.code, "event" to it.event) })
    "retryDeadLetters" -> mapOf("retried" to client.retryDeadLetters())
    "ids" -> mapOf("client" to client.clientId, "anonymous" to client.anonymousId)
    "state" -> mapOf("waiting" to client.waiting, "oldestAgeMs" to client.oldestAgeMs, "isDurable" to client.isDurable)
    "odd" -> mapOf("thrown" to oddEvents().map { runCatching { client.send(it) }.exceptionOrNull()?.javaClass?.simpleName })
    "reset" -> mapOf("done" to client.reset())
    "optOut" -> mapOf("done" to client.optOut())
    "optIn" -> mapOf("done" to client.optIn())
    else -> mapOf("place" to call(client, name, command)?.let { listOf(it.session, it.sequence) })
}

/** Events that are no JSON, or too large: in themselves, once and twice, deep, and with one part many times. */
private fun oddEvents(): List<JsonObject> {
    val deep = JsonObject()
    (1..100_000).fold(deep) { of, _ -> JsonObject().also { of.add("context", it) } }
    val vast = (1..40).fold(JsonArray()) { part, _ -> JsonArray().apply { repeat(4) { add(part) } } }
    return listOf(
        JsonObject().apply { add("context", this) },
        JsonObject().apply { add("list", JsonArray().apply { repeat(2) { add(this) } }) },
        deep,
        JsonObject().apply { add("vast", vast) },
        JsonObject().apply { addProperty("number", Double.NaN) },
        JsonObject().apply { addProperty("text", "\u20ac".repeat(300_000)) },
        JsonObject().apply { addProperty("sequence", 1) },
    )
}

/** Makes a call of analytics, whose line has its arguments. */
private fun call(client: Client, name: String, command: JsonObject) = with(client) {
    fun text(argument: String) = command[argument]?.asString
    fun fields(argument: String) = command[argument]?.asJsonObject ?: JsonObject()
    val userId = text("userId")
    val context = command["context"]?.asJsonObject
    when (name) {
        "action" -> track(text("event")!!, userId, fields("properties"), text("anonymousId"), context)
        "identify" -> identify(userId, fields("traits"))
        "page" -> page(text("name"), userId, fields("properties"), context = context)
        "screen" -> screen(text("name"))
        "group" -> group(text("groupId")!!, traits = fields("traits"))
        else -> alias(userId!!, text("previousId"))
    }
}
