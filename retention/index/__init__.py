"""The search index: derived from the store, and rebuilt from it at any time."""
