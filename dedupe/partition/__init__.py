"""One partition's owner: its queue, states and health, how its index is restored, who keeps it running."""
