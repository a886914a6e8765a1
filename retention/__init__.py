"""Keep a gptel conversation's prompt exact over time: the backend.

Modules import only downwards: docs/architecture.md has the rows, tests/test_layers.py holds them.
"""

__version__ = "0.1.0"
