"""Claim: where connections run short, idle ones give way, and those of the greediest address."""

from app.http.connections import Connections


class Socket:
    """A connection that says whether it was evicted."""

    def __init__(self) -> None:
        self.is_evicted = False

    def evict(self) -> None:
        self.is_evicted = True


def enter(connections: Connections, address: str | None, count: int, *, is_waiting: bool) -> list[Socket]:
    sockets = [Socket() for _ in range(count)]
    for socket in sockets:
        assert connections.enter(socket, address)
        if is_waiting:
            connections.busy(socket)
            connections.wait(socket)
    return sockets


def test_greediest_address_loses_what_waits_longest() -> None:
    connections = Connections(connections_max=64)
    small = enter(connections, "192.0.2.1", 20, is_waiting=True)
    large = enter(connections, "192.0.2.2", 44, is_waiting=True)
    assert connections.enter(Socket(), "192.0.2.3")
    assert [socket.is_evicted for socket in large] == [True] + [False] * 43
    assert not any(socket.is_evicted for socket in small)
    assert (connections.evicted, connections.refused) == (1, 0)


def test_idle_connections_of_the_greediest_address_go_before_any_other() -> None:
    connections = Connections(connections_max=64)
    others = enter(connections, "192.0.2.1", 4, is_waiting=False)
    crowd = enter(connections, "192.0.2.2", 60, is_waiting=False)
    assert connections.enter(Socket(), "192.0.2.2")
    assert crowd[0].is_evicted
    assert not any(socket.is_evicted for socket in others)


def test_requests_that_the_gateway_works_on_are_never_evicted() -> None:
    connections = Connections(connections_max=8)
    sockets = enter(connections, "192.0.2.1", 8, is_waiting=True)
    for socket in sockets:
        connections.busy(socket)
    assert not connections.enter(Socket(), "192.0.2.2")
    assert not any(socket.is_evicted for socket in sockets)


def test_greediest_address_cannot_make_room_for_itself_with_requests() -> None:
    connections = Connections(connections_max=8)
    enter(connections, "192.0.2.1", 8, is_waiting=True)
    assert not connections.enter(Socket(), "192.0.2.1")


def test_share_of_an_address_does_not_bind_proxies_or_small_addresses() -> None:
    connections = Connections(connections_max=64)
    enter(connections, None, 60, is_waiting=True)
    enter(connections, "192.0.2.1", 4, is_waiting=True)
    assert not connections.enter(Socket(), "192.0.2.2")


def test_slot_of_a_closing_connection_is_free_at_once() -> None:
    connections = Connections(connections_max=1)
    first = Socket()
    assert connections.enter(first, "192.0.2.1")
    connections.busy(first)
    assert not connections.enter(Socket(), "192.0.2.2")
    connections.close(first)
    assert connections.enter(Socket(), "192.0.2.1")
    connections.leave(first)
    assert (connections.open, connections.idle) == (2, 1)


def test_sockets_beyond_all_refusals_lose_the_oldest_refused_one() -> None:
    connections = Connections(connections_max=1, refused_max=2)
    busy, *refused = [Socket() for _ in range(4)]
    connections.enter(busy, "192.0.2.1")
    connections.busy(busy)
    for socket in refused:
        connections.enter(socket, "192.0.2.1")
    assert [socket.is_evicted for socket in refused] == [True, False, False]


def test_everything_is_forgotten_in_the_end() -> None:
    connections = Connections(connections_max=3)
    sockets = enter(connections, "192.0.2.1", 3, is_waiting=True)
    late = Socket()
    assert not connections.enter(late, "192.0.2.1")
    assert connections.enter_request("192.0.2.1")
    connections.leave_request("192.0.2.1")
    for socket in (*sockets, late):
        connections.leave(socket)
    kept = connections._addresses, connections._greedy, connections._leaving, connections._requests
    assert (connections.open, *kept) == (0, {}, {}, {}, {})


def test_address_behind_a_proxy_has_a_share_of_the_requests_once_they_are_many() -> None:
    connections = Connections(connections_max=32)
    assert all(connections.enter_request("192.0.2.1") for _ in range(16))
    assert not connections.enter_request("192.0.2.1")
    assert connections.enter_request("192.0.2.2")
    assert connections.refused == 1
    for _ in range(2):
        connections.leave_request("192.0.2.1")
    assert not connections.enter_request("192.0.2.1")
    for _ in range(2):
        connections.leave_request("192.0.2.1")
    assert connections.enter_request("192.0.2.1")


def test_unknown_clients_behind_a_proxy_have_no_common_share() -> None:
    connections = Connections(connections_max=32)
    assert all(connections.enter_request(None) for _ in range(40))
    assert connections.enter_request("192.0.2.1")
    assert connections.refused == 0
    for _ in range(40):
        connections.leave_request(None)
    assert all(connections.enter_request("192.0.2.1") for _ in range(15))
