"""How a job runs: options, Spark session, streams, progress, stalls."""
