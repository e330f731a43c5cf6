package gateway.tests

import gateway.Client
import gateway.JdkTransport
import gateway.SqliteStorage

/** The example of README.md; the URL is its argument. */
fun main(arguments: Array<String>) {
    val client = Client(SqliteStorage.open("events.db"), JdkTransport(arguments[0], "my-write-key"))
    client.track("Order Completed", userId = "u1")
    println(client.flush(10_000))
    client.close()
}
