"""From a request to its answer: paths, JSON, identity of each event, receipts."""
