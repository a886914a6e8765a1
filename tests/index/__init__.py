"""The derived search index."""
