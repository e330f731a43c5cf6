package gateway

import java.io.File
import java.io.IOException
import java.nio.file.Files
import java.nio.file.Path
import java.nio.file.attribute.BasicFileAttributes
import java.nio.file.attribute.PosixFilePermissions
import java.sql.Connection
import java.sql.DriverManager
import java.sql.SQLException

/** Given up when the disk is full, so that what is delivered can be deleted. */
private const val BALLAST_BYTES = 1 shl 20

/** Pages of the -wal that are copied at once, well below the ballast. */
private const val WAL_PAGES = 100

private const val SQLITE_BUSY = 5
private const val SQLITE_READONLY = 8
private const val SQLITE_IOERR = 10
private const val SQLITE_CORRUPT = 11
private const val SQLITE_FULL = 13
private const val SQLITE_CANTOPEN = 14
private const val SQLITE_NOTADB = 26
private const val SQLITE_IOERR_SHORT_READ = 522
private const val SQLITE_IOERR_WRITE = 778
private const val PRIMARY_CODE = 0xff

internal val SQLException.isInUse get() = errorCode and PRIMARY_CODE == SQLITE_BUSY
internal val SQLException.isDamage
    get() = errorCode and PRIMARY_CODE in setOf(SQLITE_CORRUPT, SQLITE_NOTADB) || errorCode == SQLITE_IOERR_SHORT_READ
/** Returns the error of a row that is not what was written. */
internal fun damage() = SQLException("a row is damaged", null, SQLITE_CORRUPT)

internal val SQLException.isNoRoom get() = errorCode and PRIMARY_CODE == SQLITE_FULL || errorCode == SQLITE_IOERR_WRITE

/** Whether the disk takes no write: it is full, read-only or broken. */
internal val SQLException.isRefused
    get() = !isDamage && errorCode and PRIMARY_CODE in setOf(SQLITE_READONLY, SQLITE_IOERR, SQLITE_FULL, SQLITE_CANTOPEN)

private val SCHEMA = listOf(
    "CREATE TABLE IF NOT EXISTS installation (client TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL UNIQUE,
        last INTEGER NOT NULL DEFAULT 0, doubtful_through INTEGER NOT NULL DEFAULT 0, source TEXT NOT NULL DEFAULT '')""",
    """CREATE TABLE IF NOT EXISTS events (session_id INTEGER NOT NULL, sequence INTEGER NOT NULL,
        content TEXT NOT NULL, queued_at_ms INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (session_id, sequence)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS dead_letters (id INTEGER PRIMARY KEY, session TEXT NOT NULL,
        sequence INTEGER NOT NULL, code TEXT NOT NULL, message TEXT NOT NULL, content TEXT NOT NULL)""",
)

/** Whether a client id is one that was made here. */
internal const val IS_CLIENT = "(length(client) BETWEEN 1 AND 100 AND client NOT GLOB '*[^!-~]*')"

/** What is not so was damaged, and can be read all the same. */
private val IS_WHOLE = mapOf(
    "installation" to IS_CLIENT,
    "sessions" to "typeof(session) || typeof(last) || typeof(doubtful_through) = 'textintegerinteger'",
    "events" to "typeof(session_id) || typeof(sequence) || typeof(content) = 'integerintegertext'",
)

private val TABLES = mapOf(
    "installation" to "client",
    "settings" to "name, value",
    "sessions" to "id, session, last, doubtful_through, source",
    "events" to "session_id, sequence, content, queued_at_ms",
    "dead_letters" to "id, session, sequence, code, message, content",
)

/** The file of a queue and those beside it; null stands for memory. */
internal class QueueFile(private val path: File?) {
    val isThere get() = path != null
    private val ballast = path?.let { File("$it-ballast") }

    /** Of the file that was opened last. */
    private var key: Any? = null

    /** Whether somebody has deleted or replaced the file: what is written to it is lost. */
    val hasVanished get() = path != null && keyNow() != key

    fun connection(): Connection {
        val file = path?.toPath() ?: return DriverManager.getConnection("jdbc:sqlite::memory:")
        makeForOwner(file)
        key = keyNow()
        return DriverManager.getConnection("jdbc:sqlite:$path")
    }

    /** Makes a file that only its owner reads, or an existing one so. */
    private fun makeForOwner(file: Path) {
        val owner = PosixFilePermissions.fromString("rw-------")
        runCatching { Files.createFile(file, PosixFilePermissions.asFileAttribute(owner)) }
        if (Files.isRegularFile(file)) runCatching { Files.setPosixFilePermissions(file, owner) }
    }

    private fun keyNow(): Any? =
        runCatching { Files.readAttributes(path!!.toPath(), BasicFileAttributes::class.java).fileKey() }.getOrNull()

    fun opened() = connection().also(::prepare)

    fun prepare(db: Connection) = db.createStatement().use {
        it.execute("PRAGMA locking_mode = EXCLUSIVE") // until the process ends, however it does
        it.execute("PRAGMA auto_vacuum = INCREMENTAL")
        it.execute("PRAGMA journal_mode = WAL")
        it.execute("PRAGMA synchronous = FULL") // less would lose events with the power
        it.execute("PRAGMA wal_autocheckpoint = $WAL_PAGES")
        takeBallast()
    }

    /** Returns whether there is a ballast now. */
    fun takeBallast(): Boolean {
        val file = ballast ?: return true
        if (file.length() == BALLAST_BYTES.toLong()) return true
        try {
            makeForOwner(file.toPath())
            file.writeBytes(ByteArray(BALLAST_BYTES))
            return true
        } catch (_: IOException) {
            file.delete()
            return false
        }
    }

    /** Makes room on a full disk; returns whether there was something to give up. */
    fun giveUpBallast() = ballast?.delete() ?: false

    /** Leaves nothing of deleted rows on the disk, and no file that was set aside. */
    fun erase(db: Connection) {
        db.createStatement().use {
            it.execute("VACUUM")
            it.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        }
        val folder = path?.absoluteFile?.parentFile ?: return
        folder.listFiles { _, name -> name.startsWith("${path.name}.corrupt-") }?.forEach { it.delete() }
    }

    /** Renames a damaged file and its -wal; returns its name, the same if nobody may, or null if it is not there any more. */
    fun setAside(nowMs: Long): File? {
        val aside = File("$path.corrupt-$nowMs")
        File("$path-wal").renameTo(File("$aside-wal"))
        return if (path!!.renameTo(aside)) aside else path.takeIf { it.exists() }
    }

    fun isAt(file: File?) = path == file

    /** Adds what can be read of a damaged file, from both ends of each table; events keep their places. */
    fun salvageInto(db: Connection, damaged: File) =
        DriverManager.getConnection("jdbc:sqlite:$damaged").use { salvageInto(db, it) }

    /** Makes the tables, or adds what those of an earlier version lack. */
    fun makeTables(db: Connection) = db.createStatement().use {
        SCHEMA.forEach(it::execute)
        if ("queued_at_ms" !in columnsOf(db, "events")) {
            it.execute("ALTER TABLE events ADD COLUMN queued_at_ms INTEGER NOT NULL DEFAULT 0")
        }
    }

    private fun columnsOf(db: Connection, table: String) = db.createStatement().use {
        val names = it.executeQuery("SELECT name FROM pragma_table_info('$table')")
        buildSet { while (names.next()) add(names.getString(1)) }
    }

    /** Makes the rows those of another connection, in the caller's transaction. */
    fun copyInto(db: Connection, from: Connection) {
        for ((table, columns) in TABLES) {
            db.createStatement().use { it.execute("DELETE FROM $table") }
            copyRows(from, db, table, columns, "ASC")
        }
    }

    fun salvageInto(db: Connection, from: Connection) {
        for ((table, columns) in TABLES) {
            for (order in listOf("ASC", "DESC")) runCatching { copyRows(from, db, table, columns, order) }
        }
        // An event whose session cannot be read could be stored twice: the damaged file keeps it.
        db.createStatement().use { it.execute("DELETE FROM events WHERE session_id NOT IN (SELECT id FROM sessions)") }
    }

    private fun copyRows(from: Connection, to: Connection, table: String, all: String, order: String) {
        val known = columnsOf(from, table)
        val columns = all.split(", ").filter { it in known }.joinToString()
        val width = columns.split(",").size
        val key = if (table == "events") "session_id $order, sequence $order" else "rowid $order"
        val insert = "INSERT OR IGNORE INTO $table ($columns) VALUES (?${",?".repeat(width - 1)})"
        from.createStatement().use { statement ->
            val rows = statement.executeQuery("SELECT $columns FROM $table WHERE ${IS_WHOLE[table] ?: true} ORDER BY $key")
            to.prepareStatement(insert).use {
                while (rows.next()) {
                    for (column in 1..width) it.setObject(column, rows.getObject(column))
                    it.execute()
                }
            }
        }
    }
}
