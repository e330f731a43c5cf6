"""Traffic as clients make it, by locust: profiles, clients that judge each answer, and a verdict."""
