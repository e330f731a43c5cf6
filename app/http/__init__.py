"""From the socket to a request and back: connections, limits, bodies, client addresses, CORS, problems."""
