"""What the provider issued, found again by what a request shows of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.loopback.model import Api, Atom, Object


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Response:
    """One answer that a client got whole."""

    seq: int
    api: str
    model: str
    body: Object
    """The request that it answers."""
    elements: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """An element of a response."""

    response: Response
    index: int

    @property
    def element(self) -> Object:
        """The element itself."""
        return self.response.elements[self.index]


class Issued:
    """Every response of one server.  Not thread-safe: the server holds its lock."""

    def __init__(self) -> None:
        self._places: defaultdict[tuple[str, Atom], list[Place]] = defaultdict(list)

    def add(self, api: Api, response: Response) -> None:
        """Remember RESPONSE of API."""
        for index, element in enumerate(response.elements):
            for atom in dict.fromkeys(api.atoms(element)):
                self._places[response.api, atom].append(Place(response, index))

    def find(self, api: str, atom: Atom) -> Sequence[Place]:
        """Where API issued ATOM, the oldest first."""
        return self._places.get((api, atom), ())

    def is_foreign(self, api: str, token: str, model: str) -> bool:
        """Whether TOKEN seals what another model than MODEL said."""
        places = self.find(api, Atom("seal", token))
        return bool(places) and all(place.response.model != model for place in places)
