"""Load for a gateway: for `gateway bench`, and for benches, demo and soak test in loadtests."""
