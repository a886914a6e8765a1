"""Hooks of agents that own their history: what they get of us, and what of it they recorded."""

CLIENT = "claude-code"  # the one that is served so far
