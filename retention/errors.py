"""The error tree.  Every class has a stable `code` that crosses the wire and the CLI.

A `ClientError` is bad input: it is reported and changes nothing.  A `StoreError` is about our own
disk: the caller falls back to ordinary serialization.  Messages carry the values that matter and
never a body or a credential.
"""

from __future__ import annotations


class RetentionError(Exception):
    """Root of every error this package raises on purpose."""

    code = "internal"


class ClientError(RetentionError):
    """What the client sent cannot be used."""

    code = "invalid"


class InvalidParams(ClientError):
    """A parameter is missing, of the wrong type or out of range."""

    code = "invalid_params"


class InvalidPayload(ClientError):
    """A payload part is not JSON of the shape that its API has."""

    code = "invalid_payload"


class InvalidResponse(ClientError):
    """A response body is none that its API sends."""

    code = "invalid_response"


class UnsupportedProtocol(ClientError):
    """Client and backend do not speak a common protocol version."""

    code = "unsupported_protocol"


class UnsupportedProvider(ClientError):
    """The payload belongs to an API that has no conversation array (Kagi) or is unknown."""

    code = "unsupported_provider"


class NotInitialized(ClientError):
    """A method other than `initialize` came first."""

    code = "not_initialized"


class UnknownConversation(ClientError):
    """No conversation has this id."""

    code = "unknown_conversation"


class UnknownPlan(ClientError):
    """No prepared plan has this id (answered already, or the backend was restarted)."""

    code = "unknown_plan"


class UnknownState(ClientError):
    """The base state of a delta is not in memory: send the whole payload (`resync`)."""

    code = "resync"


class UnknownObject(ClientError):
    """No stored object has this digest."""

    code = "unknown_object"


class InvalidArchive(ClientError):
    """A file is no archive of a conversation, is damaged, or is larger than what is read."""

    code = "invalid_archive"


class ConversationExists(ClientError):
    """Another conversation has the id of the one that is to be imported."""

    code = "conversation_exists"


class HandOverError(ClientError):
    """A handed-over file is missing, too large, of another size or of another digest."""

    code = "hand_over"


class FramingError(ClientError):
    """The byte stream is not a sequence of Content-Length frames; it cannot be resumed."""

    code = "framing"


class StoreError(RetentionError):
    """The store cannot do what was asked."""

    code = "store"


class StoreVersionError(StoreError):
    """The store has a format that this version does not read."""

    code = "store_version"


class StoreFull(StoreError):
    """The disk, or the largest map that is allowed, is full."""

    code = "store_full"


class DamagedObject(StoreError):
    """Stored bytes do not hash to their digest (rule Z3)."""

    code = "damaged_object"
