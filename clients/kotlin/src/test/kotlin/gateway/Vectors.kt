package gateway.tests

import com.google.gson.JsonArray
import com.google.gson.JsonElement
import com.google.gson.JsonObject
import com.google.gson.JsonParser
import gateway.Action
import gateway.Answer
import gateway.Batch
import gateway.Queued
import gateway.Settlement
import gateway.Verdict
import gateway.settlementOf
import java.io.File
import kotlin.system.exitProcess

/** Checks clients/conformance/vectors.json; prints what differs, and ends with 1 if anything does. */
fun main(arguments: Array<String>) {
    val vectors = JsonParser.parseString(File(arguments[0]).readText()).asJsonObject.getAsJsonArray("vectors")
    val wrong = vectors.map { it.asJsonObject }.flatMap { vector -> differences(vector).map { "${vector["name"]}: $it" } }
    wrong.forEach(::println)
    println("${vectors.size()} vectors, ${wrong.size} differences")
    exitProcess(if (wrong.isEmpty()) 0 else 1)
}

private fun differences(vector: JsonObject): List<String> {
    val batch = batchOf(vector.getAsJsonObject("batch"))
    val told = vector.getAsJsonObject("answer")
    val headers = told.getAsJsonObject("headers").entrySet().associate { it.key to it.value.asString }
    val body = told["body"].asString.let { if (it == "[*100000") "[".repeat(100_000) else it }
    val answer = Answer(told["status"].asInt, headers, body)
    val found = mutableListOf<Pair<Any?, Any?>>(answer.action.name.lowercase().replace('_', ' ') to vector["action"].asString)
    vector["retryAfterSeconds"]?.let { found += answer.retryAfterS to it.asLong }
    if (answer.action == Action.SETTLE) {
        val verdicts = answer.verdicts(batch)
        found += array(verdicts.map(::json)) to vector["verdicts"]
        found += json(settlementOf(batch, verdicts)) to vector["settlement"]
    }
    return found.filter { it.first != it.second }.map { "${it.first} is not ${it.second}" }
}

private fun batchOf(told: JsonObject) = Batch(
    "client",
    told["session"].asString,
    told["firstSequence"].asLong,
    told.getAsJsonArray("events").map { Queued.of(it.asJsonObject) },
    told["sentBefore"].asLong,
    told["doubtfulThrough"].asLong,
)

private fun json(verdict: Verdict): Any {
    val fate = verdict.fate.name.lowercase().replace('_', ' ')
    return if (verdict.code.isEmpty()) fate else listOf(fate, verdict.code)
}

private fun json(settlement: Settlement): JsonElement = JsonObject().apply {
    add("done", array(settlement.done))
    add("moved", array(settlement.moved.map { it.asJson() }))
    add("deadLetters", array(settlement.deadLetters.map { listOf(it.place.sequence, it.code) }))
    addProperty("doubtfulThrough", settlement.doubtfulThrough)
    addProperty("isSessionOver", settlement.isSessionOver)
}

private fun array(items: List<Any>): JsonElement = JsonParser.parseString(com.google.gson.Gson().toJson(items)) as JsonArray
