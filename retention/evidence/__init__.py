"""What once passed through a conversation, as it is learned, cut, read and reloaded.  Pure.

The modules import each other in this order: `snapshots`, `chatfiles`, `chunking`, `views`, `runs`,
`causes`, `reloading`.
"""
