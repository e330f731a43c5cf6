"""Workers that share one log: which of them owns and follows each lane, and how they reach one another."""
