package gateway

import java.io.File
import java.sql.Connection
import java.sql.SQLException
import java.util.concurrent.ConcurrentLinkedQueue

private const val FREE_PAGES_MAX = 256

/** Whether a call then throws QueueFullException, or the oldest events are dropped. */
enum class WhenFull { THROW, DROP_OLDEST }

/**
 * A queue in an SQLite file, by the JDBC driver.
 *
 * A run numbers its events in a session of its own: a file that was restored from a backup never gives a
 * sequence to two events.
 */
class SqliteStorage private constructor(
    db: Connection,
    private var file: QueueFile,
    private val clock: Clock,
    private val eventsMax: Int,
    private val whenFull: WhenFull,
) : Statements(db), Storage {
    override val problems = ConcurrentLinkedQueue<Exception>()
    override var clientId = ""
        private set
    override var size = 0
        private set
    override val isDurable get() = file.isThere

    private var current: Long? = null

    /** The connection and the file that take no write any more, while memory has their place. */
    private var refusing: Pair<Connection, QueueFile>? = null

    /** Of the key; "" while it is not known. */
    private var source = ""

    /** How far each session of this run was sent. */
    private val sentThrough = mutableMapOf<Long, Long>()

    /** Reads what is in a file that was opened, with what `salvage` adds of another one. */
    private fun begin(salvage: () -> Unit = {}) {
        current = null
        sentThrough.clear()
        try {
            transaction {
                file.makeTables(db)
                salvage()
                val isWhole = one("SELECT NOT EXISTS (SELECT 1 FROM installation WHERE NOT $IS_CLIENT)") { it.getBoolean(1) }
                if (isWhole == false) throw damage()
                val client = one("SELECT client FROM installation") { it.getString(1) } ?: clientId
                if (client.isEmpty()) execute("DELETE FROM events") // whose they are cannot be read
                clientId = client.ifEmpty { newClientId() }
                execute("INSERT OR IGNORE INTO installation VALUES (?)", clientId)
            }
        } catch (err: SQLException) {
            if (!err.isRefused) throw err // without room for it, what is there can be sent all the same
            clientId = one("SELECT client FROM installation") { it.getString(1) } ?: throw err
        }
        count()
    }

    override fun add(events: List<Queued>): List<Place> = add(events) {}

    /** Queues events, in one commit with something else. */
    private fun add(events: List<Queued>, also: () -> Unit): List<Place> = safely {
        writeBack()
        if (file.hasVanished) replaceVanished()
        val surplus = maxOf(0, size + events.size - eventsMax)
        if (surplus > 0 && (whenFull == WhenFull.THROW || events.size > eventsMax)) throw QueueFullException("$size events wait already")
        if (!file.takeBallast()) throw SQLException("the disk is full: what waits is delivered first")
        val (id, places) = transaction {
            also()
            if (surplus > 0) dropOldest(surplus)
            val id = current ?: newSession()
            val first = append(id, events)
            val session = one("SELECT session FROM sessions WHERE id = ?", id) { it.getString(1) }!!
            id to events.indices.map { Place(session, first + it) }
        }
        current = id
        size += events.size - surplus
        if (surplus > 0) problems.add(QueueFullException("the oldest $surplus events were dropped for newer ones"))
        places
    }

    private fun dropOldest(count: Int) = execute(
        "DELETE FROM events WHERE (session_id, sequence) IN (SELECT session_id, sequence $OURS LIMIT ?)",
        source, source, count,
    )

    override val oldestQueuedMs: Long? get() = safely {
        one("SELECT queued_at_ms $OURS LIMIT 1", source, source) { it.getLong(1) }?.takeIf { it > 0 }
    }

    override fun learn(source: String): Int = inMemoryIfRefused {
        if (source != this.source) {
            execute("UPDATE sessions SET source = ? WHERE source = ''", source)
            if (this.source.isNotEmpty()) current = null // it belongs to the other source
            this.source = source
            count()
        }
        one("SELECT count(*) FROM events") { it.getInt(1) }!! - size
    }

    override fun nextBatch(eventsMax: Int, isClosing: Boolean): Batch? = safely {
        val row = one(
            "SELECT id, session, last, doubtful_through," +
                " (SELECT min(sequence) FROM events WHERE session_id = id) AS first FROM sessions" +
                " WHERE first IS NOT NULL AND ($IS_OURS) ORDER BY id LIMIT 1",
            source, source,
        ) { r -> List(5) { r.getObject(it + 1) } } ?: return@safely null
        val id = (row[0] as Number).toLong()
        val session = row[1] as? String ?: throw damage()
        val (last, doubtful, first) = row.drop(2).map { (it as? Number ?: throw damage()).toLong() }
        val events = mutableListOf<Queued>()
        var bytes = 0
        query(
            "SELECT sequence, content, queued_at_ms FROM events WHERE session_id = ? ORDER BY sequence LIMIT ?",
            id, eventsMax,
        ) {
            val content = it.getString(2) ?: throw damage()
            bytes += content.toByteArray().size
            val fits = events.isEmpty() || bytes <= BATCH_BYTES
            if (it.getLong(1) == first + events.size && fits) events += Queued(content, it.getLong(3))
        }
        val through = first + events.size - 1
        // An earlier run may have sent more than the file says, but nothing that is stored is further behind an
        // event that is not: each request says that all before it have their verdicts.
        val sentBefore = sentThrough[id] ?: maxOf(doubtful, through + BATCH_EVENTS - 1)
        Batch(clientId, session, first, events, sentBefore, doubtful, isLast = through == last && (isClosing || id != current))
    }

    override fun noteSent(batch: Batch) {
        val id = idOf(batch.session) ?: return
        sentThrough.computeIfPresent(id) { _, sent -> maxOf(sent, batch.lastSequence) }
    }

    override fun settle(batch: Batch, settlement: Settlement) = inMemoryIfRefused {
        val id = idOf(batch.session) ?: return@inMemoryIfRefused Unit
        var next = current
        transaction {
            settlement.done.forEach { execute("DELETE FROM events WHERE session_id = ? AND sequence = ?", id, it) }
            execute("UPDATE sessions SET doubtful_through = ? WHERE id = ?", settlement.doubtfulThrough, id)
            settlement.deadLetters.forEach { bury(it) }
            if (settlement.isSessionOver) {
                next = if (next == null || next == id) newSession() else next
                move(id, settlement.moved, maxOf(batch.lastSequence, settlement.doubtfulThrough), next!!)
            }
            execute(
                "DELETE FROM sessions WHERE id IS NOT ? AND NOT EXISTS" +
                    " (SELECT 1 FROM events WHERE session_id = sessions.id)",
                next,
            )
        }
        current = next
        count()
        if (size == 0) runCatching { shrink() } // what is settled already may not be so twice
    }

    override fun deadLetters(): List<DeadLetter> = safely {
        val letters = mutableListOf<DeadLetter>()
        query("SELECT session, sequence, code, message, content FROM dead_letters ORDER BY id") {
            val event = Queued(it.getString(5)).asJson()
            letters += DeadLetter(Place(it.getString(1), it.getLong(2)), it.getString(3), it.getString(4), event)
        }
        letters
    }

    override fun retryDeadLetters(): Int {
        val letters = deadLetters().filter { it.code != EVENT_DAMAGED }
        if (letters.isEmpty()) return 0
        val events = letters.map { Queued.again(it.event).movedFrom(it.place) }
        add(events) { execute("DELETE FROM dead_letters WHERE code <> ?", EVENT_DAMAGED) }
        return letters.size
    }

    override fun setting(name: String): String = safely {
        one("SELECT value FROM settings WHERE name = ?", name) { it.getString(1) }.orEmpty()
    }

    override fun keep(values: Map<String, String>) = safely(makesRoom = true) {
        writeBack()
        transaction { put(values) }
    }

    private fun put(values: Map<String, String>) = values.forEach { (name, value) ->
        execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", name, value)
    }

    override fun deleteAll(kept: Map<String, String>) = safely(makesRoom = true) {
        goBack()
        val client = newClientId()
        transaction {
            listOf("events", "sessions", "dead_letters", "settings").forEach { execute("DELETE FROM $it") }
            execute("UPDATE installation SET client = ?", client)
            put(kept)
        }
        clientId = client
        current = null
        sentThrough.clear()
        count()
        file.erase(db)
    }

    override fun lastBatch(): Batch? = current?.let { id ->
        one(
            "SELECT session, last FROM sessions s WHERE id = ? AND NOT EXISTS" +
                " (SELECT 1 FROM events WHERE session_id = s.id)",
            id,
        ) { Batch(clientId, it.getString(1), it.getLong(2) + 1, emptyList(), 0, 0, isLast = true) }
    }

    override fun close() {
        runCatching { writeBack() }
        db.close()
        refusing?.first?.close()
    }

    private fun count() {
        val ours = "SELECT count(*) FROM events JOIN sessions ON id = session_id WHERE $IS_OURS"
        size = one(ours, source, source) { it.getInt(1) }!!
    }

    /** Gives back what the file does not need any more, once that is much. */
    private fun shrink() {
        if (one("PRAGMA freelist_count") { it.getInt(1) }!! <= FREE_PAGES_MAX) return
        db.createStatement().use {
            it.executeUpdate("PRAGMA incremental_vacuum")
            it.executeUpdate("PRAGMA wal_checkpoint(TRUNCATE)")
        }
    }

    /** Works once more if damage could be mended, or room be made. */
    private fun <T> safely(makesRoom: Boolean = false, work: () -> T): T = try {
        work()
    } catch (err: SQLException) {
        when {
            err.isDamage && isDurable -> mend(err)
            !makesRoom || !err.isNoRoom || !file.giveUpBallast() -> throw err
        }
        work()
    }

    /** Does what makes room, in memory as long as the disk takes no write: the file stays as it is until `writeBack`. */
    private fun <T> inMemoryIfRefused(work: () -> T): T = try {
        if (refusing?.second?.takeBallast() == true) writeBack()
        safely(makesRoom = true, work)
    } catch (err: SQLException) {
        if (!err.isRefused && refusing == null) throw err
        if (isDurable) goOnInMemory(err)
        work()
    }

    private fun goOnInMemory(err: SQLException) {
        val memory = QueueFile(null)
        val copy = memory.opened()
        memory.makeTables(copy)
        memory.copyInto(copy, db)
        refusing = db to file
        db = copy
        file = memory
        begin()
        problems.add(SQLException("the queue's file cannot be written, what is delivered is noted in memory", err))
    }

    /** Puts what the disk refused into the file; throws what it throws if it refuses it still. */
    private fun writeBack() {
        val (there, path) = refusing ?: return
        val memory = db
        db = there
        try {
            transaction { path.copyInto(there, memory) }
        } finally {
            db = memory
        }
        goBack()
    }

    /** Uses the file again as it is, without what it refused. */
    private fun goBack() {
        val (there, path) = refusing ?: return
        db.close()
        db = there
        file = path
        refusing = null
        begin()
    }

    private fun mend(err: SQLException) {
        runCatching { db.close() }
        val aside = file.setAside(clock.nowMs())
        if (file.isAt(aside)) file = QueueFile(null)
        goOn { if (aside != null) file.salvageInto(db, aside) }
        problems.add(SQLException("the queue was damaged, $size events of it are queued again: it is kept as $aside", err))
    }

    /** Puts what a deleted file has, which is open still, into a new one, or into memory if there can be none. */
    private fun replaceVanished() {
        problems.add(SQLException("the queue's file was deleted or replaced: it is written anew"))
        db.use { gone -> goOn { file.salvageInto(db, gone) } }
    }

    /** Goes on in a new file, or in memory if there can be none, with what `salvage` adds of the old one. */
    private fun goOn(salvage: () -> Unit) {
        val before = db
        try {
            db = file.opened()
            begin(salvage)
        } catch (err: SQLException) {
            if (db !== before) runCatching { db.close() }
            problems.add(err)
            file = QueueFile(null)
            db = file.opened()
            begin(salvage)
        }
    }

    private fun newSession(): Long {
        execute("INSERT INTO sessions (session, source) VALUES (?, ?)", ksuid(clock.nowMs()), source)
        return one("SELECT last_insert_rowid()") { it.getLong(1) }!!.also { sentThrough[it] = 0 }
    }

    /** Puts events behind the last one of a session; returns the first sequence. */
    private fun append(id: Long, events: List<Queued>): Long {
        val first = one("SELECT last FROM sessions WHERE id = ?", id) { it.getLong(1) }!! + 1
        val nowMs = clock.nowMs()
        db.prepareStatement("INSERT INTO events VALUES (?, ?, ?, ?)").use { insert ->
            events.forEachIndexed { index, event ->
                val queuedAtMs = if (event.queuedAtMs > 0) event.queuedAtMs else nowMs
                insert.fill(arrayOf<Any?>(id, first + index, event.content, queuedAtMs))
                insert.addBatch()
            }
            insert.executeBatch()
        }
        execute("UPDATE sessions SET last = ? WHERE id = ?", first + events.size - 1, id)
        return first
    }

    /** Puts refused events of a session that is over into another, and those behind a sequence: they are not stored. */
    private fun move(over: Long, refused: List<Queued>, through: Long, into: Long) {
        val later = mutableListOf<Queued>()
        val session = one("SELECT session FROM sessions WHERE id = ?", over) { it.getString(1) }!!
        query(
            "SELECT sequence, content, queued_at_ms FROM events WHERE session_id = ? AND sequence > ? ORDER BY sequence",
            over, through,
        ) { later += Queued(it.getString(2), it.getLong(3)).movedFrom(Place(session, it.getLong(1))) }
        execute("DELETE FROM events WHERE session_id = ? AND sequence > ?", over, through)
        append(into, refused + later)
    }

    companion object {
        private const val IS_OURS = "source IN ('', ?) OR ? = ''"
        private const val OURS =
            "FROM events JOIN sessions ON id = session_id WHERE $IS_OURS ORDER BY session_id, sequence"

        /**
         * Opens a queue, and makes it if there is none. A damaged file is set aside, and memory takes the place
         * of a file that cannot be opened; `problems` has both, and damage that is met later.
         */
        fun open(
            path: String,
            clock: Clock = SystemClock,
            eventsMax: Int = 100_000,
            whenFull: WhenFull = WhenFull.THROW,
        ): SqliteStorage {
            val open = { file: QueueFile -> opened(SqliteStorage(file.connection(), file, clock, eventsMax, whenFull)) }
            try {
                return open(QueueFile(File(path)))
            } catch (err: SQLException) {
                if (err.isInUse) throw err
                return open(QueueFile(null)).also { it.problems.add(err) }
            }
        }

        private fun opened(storage: SqliteStorage): SqliteStorage {
            try {
                storage.safely {
                    storage.file.prepare(storage.db)
                    storage.begin()
                }
                return storage
            } catch (err: Exception) {
                storage.db.close()
                throw err
            }
        }
    }
}
