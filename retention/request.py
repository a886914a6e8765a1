"""What a plan is made of: a request as the client asks, and the view of what is known."""

from __future__ import annotations

from retention.arrays import Read, Sent, State
from retention.digest import Digest
from retention.ledger import Log
from retention.model import Conversation, Identity, Message, Reminder, Section, Struct
from retention.providers import Head, Provider, Response

# Steps of `Refusal`: what a request leaves out from each on (adapter.md Z6).
NO_REASONING, NO_FRAGMENTS, NO_EDITS = 1, 2, 3


class View(Struct, frozen=True):
    """What a plan may look at.  `base` is the state that the delta refers to, `last` the array that
    this conversation sent last, `reusable` whether the client still holds that one.  `response` is
    what the provider sent to the last dispatch of the request.
    """

    conversation: Conversation
    log: Log
    provider: Provider
    read: Read
    base: State | None = None
    last: Sent | None = None
    reusable: bool = False
    step: int = 0
    response: Response | None = None


class Request(Struct, frozen=True):
    """A prepare with its texts read: `tail` are the elements behind the first `keep` of the base,
    `span`, `prompt`, `hooked` and `context` as in `protocol.Prepare`.  `who` digests the identity,
    `seed` what reasoning may be bound to beside the array, None if it is not.  `marks`: cache marks
    of messages are planned.
    """

    tail: list[Message]
    identity: Identity
    who: Digest
    keep: int = 0
    span: tuple[Message, ...] = ()
    prompt: tuple[Message, ...] = ()
    sections: tuple[Section, ...] = ()
    reminders: tuple[Reminder, ...] = ()
    frozen: bool = False
    shape: str = ""
    hooked: bool = False
    context: bool = True
    marks: bool = False
    head: Head | None = None
    seed: Digest | None = None
