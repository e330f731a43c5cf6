"""HTTP: connections, limits, bodies, client addresses, CORS, problems."""
