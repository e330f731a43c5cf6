package gateway.tests

import com.google.gson.Gson
import com.google.gson.JsonObject
import com.google.gson.JsonParser
import gateway.Client
import gateway.JdkTransport
import gateway.Listener
import gateway.SqliteStorage
import java.time.Instant

/** Drives the client by lines of JSON, see clients/conformance/README.md. */
fun main() {
    val gson = Gson()
    var client: Client? = null
    val listener = object : Listener {
        override fun onProblem(err: Exception, since: Instant) = System.err.println("problem since $since: $err")
    }
    for (line in generateSequence(::readLine)) {
        val command = JsonParser.parseString(line).asJsonObject
        val answer: Any = when (command["do"].asString) {
            "open" -> {
                val storage = SqliteStorage.open(command["path"].asString)
                client = Client(storage, JdkTransport(command["url"].asString, command["key"].asString), listener)
                mapOf("client" to storage.clientId)
            }
            "track" -> {
                val places = client!!.sendAll(command.getAsJsonArray("events").map { it as JsonObject })
                mapOf("places" to places.map { listOf(it.session, it.sequence) })
            }
            "flush" -> mapOf("flushed" to client!!.flush(command["timeoutMs"].asLong))
            "close" -> mapOf("closed" to client!!.close(command["timeoutMs"].asLong))
            else -> mapOf("letters" to client!!.deadLetters().map { mapOf("code" to it.code, "event" to it.event) })
        }
        println(gson.toJson(answer))
    }
}
