package gateway

import com.google.gson.JsonObject

/**
 * The calls of analytics.
 *
 * Each queues an event with the time of the call, and returns its place once it is durable; null if it is not to
 * be sent. Without a user id the event gets the one that `identify` or `alias` has set, else the anonymous id.
 */
abstract class Vocabulary {
    /** Queues an event, with what is kept about the user. */
    protected abstract fun say(event: JsonObject): Place?

    /** Returns the time as it stands in events. */
    protected abstract fun now(): String

    /** Queues an action of a user. */
    fun track(
        event: String,
        userId: String? = null,
        properties: JsonObject = JsonObject(),
        anonymousId: String? = null,
        context: JsonObject? = null,
    ): Place? = say("track", userId, anonymousId, context) {
        addProperty("event", event)
        add("properties", properties)
    }

    /** Queues who the user is; the id is kept for later events until `reset`. */
    fun identify(
        userId: String? = null,
        traits: JsonObject = JsonObject(),
        anonymousId: String? = null,
        context: JsonObject? = null,
    ): Place? = say("identify", userId, anonymousId, context) { add("traits", traits) }

    /** Queues a view of a page. */
    fun page(
        name: String? = null,
        userId: String? = null,
        properties: JsonObject = JsonObject(),
        anonymousId: String? = null,
        context: JsonObject? = null,
    ): Place? = say("page", userId, anonymousId, context) {
        addIfGiven("name", name)
        add("properties", properties)
    }

    /** Queues a view of a screen. */
    fun screen(
        name: String? = null,
        userId: String? = null,
        properties: JsonObject = JsonObject(),
        anonymousId: String? = null,
        context: JsonObject? = null,
    ): Place? = say("screen", userId, anonymousId, context) {
        addIfGiven("name", name)
        add("properties", properties)
    }

    /** Queues which group the user belongs to. */
    fun group(
        groupId: String,
        userId: String? = null,
        traits: JsonObject = JsonObject(),
        anonymousId: String? = null,
        context: JsonObject? = null,
    ): Place? = say("group", userId, anonymousId, context) {
        addProperty("groupId", groupId)
        add("traits", traits)
    }

    /** Queues that two ids are one user's; without the previous one it is the id that was kept. */
    fun alias(
        userId: String,
        previousId: String? = null,
        anonymousId: String? = null,
        context: JsonObject? = null,
    ): Place? = say("alias", userId, anonymousId, context) { addIfGiven("previousId", previousId) }

    private fun say(
        type: String,
        userId: String?,
        anonymousId: String?,
        context: JsonObject?,
        add: JsonObject.() -> Unit,
    ): Place? = say(
        JsonObject().apply {
            addProperty("type", type)
            addIfGiven("userId", userId)
            addIfGiven("anonymousId", anonymousId)
            add()
            if (context != null) add("context", context)
            addProperty("timestamp", now())
        },
    )
}

private fun JsonObject.addIfGiven(name: String, value: String?) {
    if (!value.isNullOrEmpty()) addProperty(name, value)
}
