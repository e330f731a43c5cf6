"""Traffic like that of clients, by locust: profiles, clients that check each answer, and a verdict."""
