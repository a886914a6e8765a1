"""What once passed through a conversation, as it is learned, cut, read and reloaded.  Pure.

The modules import each other in this order: `snapshots`, then `conversations`, `chatfiles` and
`chunking`, then `views`; `runs`, then `causes`; `excerpts` and `reloading` stand by themselves.
"""
