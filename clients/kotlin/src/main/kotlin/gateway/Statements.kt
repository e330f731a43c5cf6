package gateway

import java.sql.Connection
import java.sql.PreparedStatement
import java.sql.ResultSet

private const val DEAD_LETTERS_MAX = 10_000

/** The statements of a queue on a connection, which may become another one. */
abstract class Statements internal constructor(internal var db: Connection) {
    internal fun <T> transaction(work: () -> T): T {
        execute("BEGIN IMMEDIATE")
        try {
            return work().also { execute("COMMIT") }
        } catch (err: Throwable) { // an Error, too, would leave it open for ever
            runCatching { execute("ROLLBACK") }
            throw err
        }
    }

    internal fun execute(sql: String, vararg values: Any?) {
        db.prepareStatement(sql).use { it.fill(values).execute() }
    }

    internal fun query(sql: String, vararg values: Any?, row: (ResultSet) -> Unit) {
        db.prepareStatement(sql).use { statement ->
            statement.fill(values).executeQuery().use { while (it.next()) row(it) }
        }
    }

    internal fun <T> one(sql: String, vararg values: Any?, row: (ResultSet) -> T): T? {
        var found: T? = null
        query(sql, *values) { found = row(it) }
        return found
    }

    internal fun PreparedStatement.fill(values: Array<out Any?>): PreparedStatement {
        values.forEachIndexed { index, value -> setObject(index + 1, value) }
        return this
    }

    internal fun idOf(session: String): Long? =
        one("SELECT id FROM sessions WHERE session = ?", session) { it.getLong(1) }

    internal fun bury(letter: DeadLetter) {
        execute(
            "INSERT INTO dead_letters (session, sequence, code, message, content) VALUES (?, ?, ?, ?, ?)",
            letter.place.session, letter.place.sequence, letter.code, letter.message, gson.toJson(letter.event),
        )
        execute( // of those that the gateway has a copy of
            "DELETE FROM dead_letters WHERE id <= (SELECT max(id) FROM dead_letters) - ? AND code NOT IN (?, ?)",
            DEAD_LETTERS_MAX, EVENT_REFUSED, EVENT_DAMAGED,
        )
    }
}
