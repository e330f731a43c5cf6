package gateway

import com.google.gson.JsonParser
import java.io.File
import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions
import java.sql.Connection
import java.sql.DriverManager
import java.sql.PreparedStatement
import java.sql.ResultSet
import java.sql.SQLException

private const val DEAD_LETTERS_MAX = 10_000

private val SCHEMA = listOf(
    "CREATE TABLE IF NOT EXISTS installation (client TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL UNIQUE,
        last INTEGER NOT NULL DEFAULT 0, sent_through INTEGER NOT NULL DEFAULT 0,
        doubtful_through INTEGER NOT NULL DEFAULT 0, source TEXT NOT NULL DEFAULT '')""",
    """CREATE TABLE IF NOT EXISTS events (session_id INTEGER NOT NULL, sequence INTEGER NOT NULL,
        content TEXT NOT NULL, PRIMARY KEY (session_id, sequence)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS dead_letters (id INTEGER PRIMARY KEY, session TEXT NOT NULL,
        sequence INTEGER NOT NULL, code TEXT NOT NULL, message TEXT NOT NULL, content TEXT NOT NULL)""",
)

/**
 * A queue in an SQLite file, by the JDBC driver.
 *
 * A run numbers its events in a session of its own: a file that was restored from a backup never gives a
 * sequence to two events.
 */
class SqliteStorage private constructor(
    private val db: Connection,
    private val clock: Clock,
    private val eventsMax: Int,
    override val isDurable: Boolean,
) : Storage {
    override val clientId: String
    override var size = 0
        private set

    override val hasSources: Boolean
    private var current: Long? = null

    /** How far each session was sent: by this run as it happened, by earlier ones as the file allows for. */
    private val sentThrough = mutableMapOf<Long, Long>()

    init {
        execute("PRAGMA locking_mode = EXCLUSIVE")
        query("PRAGMA journal_mode = WAL") { it.getString(1) }
        execute("PRAGMA synchronous = FULL")
        clientId = transaction {
            SCHEMA.forEach { execute(it) }
            one("SELECT client FROM installation") { it.getString(1) }
                ?: newClientId().also { execute("INSERT INTO installation VALUES (?)", it) }
        }
        size = one("SELECT count(*) FROM events") { it.getInt(1) }!!
        query("SELECT id, sent_through FROM sessions") { sentThrough[it.getLong(1)] = it.getLong(2) }
        hasSources = one("SELECT 1 FROM sessions WHERE source <> ''") { true } ?: false
    }

    override fun add(events: List<Queued>): List<Place> {
        check(size + events.size <= eventsMax) { "$size events wait already" }
        val (id, places) = transaction {
            val id = current ?: newSession()
            val first = append(id, events)
            val session = one("SELECT session FROM sessions WHERE id = ?", id) { it.getString(1) }!!
            id to events.indices.map { Place(session, first + it) }
        }
        current = id
        size += events.size
        return places
    }

    override fun nextBatch(eventsMax: Int, source: String, isClosing: Boolean): Batch? {
        val row = one(
            "SELECT s.id, s.session, s.last, s.sent_through, s.doubtful_through, min(e.sequence) FROM events e" +
                " JOIN sessions s ON s.id = e.session_id WHERE s.source IN ('', ?) GROUP BY s.id ORDER BY s.id LIMIT 1",
            source,
        ) { r -> List(6) { r.getObject(it + 1) } } ?: return null
        val id = (row[0] as Number).toLong()
        val (last, marked, doubtful, first) = row.drop(2).map { (it as Number).toLong() }
        val events = mutableListOf<Queued>()
        var bytes = 0
        query(
            "SELECT sequence, content FROM events WHERE session_id = ? AND sequence <= ? ORDER BY sequence LIMIT ?",
            id, marked, eventsMax,
        ) {
            val content = it.getString(2)
            bytes += content.length
            val fits = events.isEmpty() || bytes <= BATCH_BYTES
            if (it.getLong(1) == first + events.size && fits) events += Queued(content)
        }
        val isLast = first + events.size - 1 == last && (isClosing || id != current)
        return Batch(row[1] as String, first, events, sentThrough[id] ?: 0, doubtful, isLast)
    }

    override fun noteSent(batch: Batch) {
        val id = idOf(batch.session) ?: return
        sentThrough[id] = maxOf(sentThrough[id] ?: 0, batch.lastSequence)
    }

    override fun settle(batch: Batch, settlement: Settlement, source: String) {
        val id = idOf(batch.session) ?: return
        var next = current
        transaction {
            settlement.done.forEach { execute("DELETE FROM events WHERE session_id = ? AND sequence = ?", id, it) }
            execute(
                "UPDATE sessions SET doubtful_through = ?, source = ? WHERE id = ?",
                settlement.doubtfulThrough, source, id,
            )
            settlement.deadLetters.forEach { bury(it) }
            if (settlement.isSessionOver) {
                next = if (next == null || next == id) newSession() else next
                move(id, settlement.moved, next!!)
            }
            markNext(id)
            execute(
                "DELETE FROM sessions WHERE id IS NOT ? AND NOT EXISTS" +
                    " (SELECT 1 FROM events WHERE session_id = sessions.id)",
                next,
            )
        }
        current = next
        size = one("SELECT count(*) FROM events") { it.getInt(1) }!!
    }

    override fun deadLetters(): List<DeadLetter> {
        val letters = mutableListOf<DeadLetter>()
        query("SELECT session, sequence, code, message, content FROM dead_letters ORDER BY id") {
            val event = JsonParser.parseString(it.getString(5)).asJsonObject
            letters += DeadLetter(Place(it.getString(1), it.getLong(2)), it.getString(3), it.getString(4), event)
        }
        return letters
    }

    override fun lastBatch(): Batch? = current?.let { id ->
        one(
            "SELECT session, last FROM sessions s WHERE id = ? AND NOT EXISTS" +
                " (SELECT 1 FROM events WHERE session_id = s.id)",
            id,
        ) { Batch(it.getString(1), it.getLong(2) + 1, emptyList(), 0, 0, isLast = true) }
    }

    override fun close() = db.close()

    private fun idOf(session: String): Long? =
        one("SELECT id FROM sessions WHERE session = ?", session) { it.getLong(1) }

    private fun newSession(): Long {
        execute("INSERT INTO sessions (session) VALUES (?)", ksuid(clock.nowMs()))
        return one("SELECT last_insert_rowid()") { it.getLong(1) }!!
    }

    /** Puts events behind the last one of a session; returns the first sequence. */
    private fun append(id: Long, events: List<Queued>): Long {
        val first = one("SELECT last FROM sessions WHERE id = ?", id) { it.getLong(1) }!! + 1
        db.prepareStatement("INSERT INTO events VALUES (?, ?, ?)").use { insert ->
            events.forEachIndexed { index, event ->
                insert.fill(arrayOf<Any?>(id, first + index, event.content))
                insert.addBatch()
            }
            insert.executeBatch()
        }
        execute("UPDATE sessions SET last = ? WHERE id = ?", first + events.size - 1, id)
        markNext(id)
        return first
    }

    /** Allows for the next batch, so that nothing has to be written before it is sent. */
    private fun markNext(id: Long) = execute(
        "UPDATE sessions SET sent_through = max(sent_through, min(last, coalesce((SELECT min(sequence) FROM events" +
            " WHERE session_id = sessions.id), last) + ? - 1)) WHERE id = ?",
        BATCH_EVENTS, id,
    )

    /** Puts refused events of a session that is over into another, and those of it that were never sent. */
    private fun move(over: Long, refused: List<Queued>, into: Long) {
        val unsent = mutableListOf<Queued>()
        val session = one("SELECT session FROM sessions WHERE id = ?", over) { it.getString(1) }!!
        val sent = sentThrough[over] ?: 0
        query("SELECT sequence, content FROM events WHERE session_id = ? AND sequence > ? ORDER BY sequence", over, sent) {
            unsent += Queued(it.getString(2)).movedFrom(Place(session, it.getLong(1)))
        }
        execute("DELETE FROM events WHERE session_id = ? AND sequence > ?", over, sent)
        append(into, refused + unsent)
    }

    private fun bury(letter: DeadLetter) {
        execute(
            "INSERT INTO dead_letters (session, sequence, code, message, content) VALUES (?, ?, ?, ?, ?)",
            letter.place.session, letter.place.sequence, letter.code, letter.message, gson.toJson(letter.event),
        )
        execute("DELETE FROM dead_letters WHERE id <= (SELECT max(id) FROM dead_letters) - ?", DEAD_LETTERS_MAX)
    }

    private fun <T> transaction(work: () -> T): T {
        execute("BEGIN IMMEDIATE")
        try {
            return work().also { execute("COMMIT") }
        } catch (err: Exception) {
            runCatching { execute("ROLLBACK") }
            throw err
        }
    }

    private fun execute(sql: String, vararg values: Any?) {
        db.prepareStatement(sql).use { it.fill(values).execute() }
    }

    private fun query(sql: String, vararg values: Any?, row: (ResultSet) -> Unit) {
        db.prepareStatement(sql).use { statement ->
            statement.fill(values).executeQuery().use { while (it.next()) row(it) }
        }
    }

    private fun <T> one(sql: String, vararg values: Any?, row: (ResultSet) -> T): T? {
        var found: T? = null
        query(sql, *values) { found = row(it) }
        return found
    }

    private fun PreparedStatement.fill(values: Array<out Any?>): PreparedStatement {
        values.forEachIndexed { index, value -> setObject(index + 1, value) }
        return this
    }

    companion object {
        /**
         * Opens a queue, and makes it if there is none. A damaged file is set aside, and memory takes the place
         * of a file that cannot be opened; `told` hears of both.
         */
        fun open(path: String, clock: Clock = SystemClock, eventsMax: Int = 100_000, told: (Exception) -> Unit = {}): SqliteStorage {
            try {
                return opened(path, clock, eventsMax)
            } catch (err: SQLException) {
                told(err)
                if ("BUSY" in err.message.orEmpty() || "locked" in err.message.orEmpty()) throw err
            }
            val aside = File("$path.corrupt-${clock.nowMs()}")
            if (File(path).renameTo(aside)) {
                listOf("-wal", "-shm").forEach { File(path + it).renameTo(File(aside.path + it)) }
                try {
                    return opened(path, clock, eventsMax)
                } catch (err: SQLException) {
                    told(err)
                }
            }
            return SqliteStorage(DriverManager.getConnection("jdbc:sqlite::memory:"), clock, eventsMax, isDurable = false)
        }

        private fun opened(path: String, clock: Clock, eventsMax: Int): SqliteStorage {
            runCatching {
                val owner = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))
                Files.createFile(File(path).toPath(), owner)
            }
            val db = DriverManager.getConnection("jdbc:sqlite:$path")
            try {
                return SqliteStorage(db, clock, eventsMax, isDurable = true)
            } catch (err: Exception) {
                db.close()
                throw err
            }
        }
    }
}
