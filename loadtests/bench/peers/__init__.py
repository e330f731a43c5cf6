"""The services that the gateway is compared with."""
