"""The owner of a partition: its queue, states, health, recovery and supervision."""
