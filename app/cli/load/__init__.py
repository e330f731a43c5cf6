"""Load for a gateway: under `gateway bench`, and under the benches, the demo and the soak in loadtests."""
