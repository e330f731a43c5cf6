"""The audit: checks, reconciliation with the gateway's counters, verdict and report."""
