"""The settings of the gateway, the units they are written in, and the data folder."""
