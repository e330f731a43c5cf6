"""
Salvage: finds the complete events in a body that is not JSON, and the fragments between them.

See docs/adr/0022-salvage.md for the rules.
"""
