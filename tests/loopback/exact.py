"""The mode `exact`: what a request returns of a response is the whole of it, unmodified.

An element is known by what the provider named or sealed in it, one without either by what it says.
Then its response must stand there element by element, as `Api.normal` shows them.  Text that was
never issued is nobody's business, and so is what another model said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.loopback.issued import Issued, Place
from tests.loopback.model import Api, Atom, Json, Object, Refused, Request
from tests.loopback.wire import dumps

UNIQUE = ("seal", "id")
KEYS = (("seal", "id"), ("call", "text", "reasoning"))  # the first that an element has


def check_exact(api: Api, request: Request, issued: Issued) -> None:
    """Refuse the first element that is not as it was issued."""
    array = request.json.get(api.array)
    if not isinstance(array, list):
        return
    model = api.model(request)
    seen: dict[Atom, int] = {}
    for number, element in enumerate(array):
        keys = find_keys(api.atoms(element))
        places = [
            p for key in keys for p in issued.find(api.name, key) if p.response.model == model
        ]
        if not places:
            continue
        found = [compare(api, array, number, each) for each in places]
        if all(found):
            raise Refused(found[-1], code="not_as_issued")
        for key in keys:
            if key.kind in UNIQUE and seen.setdefault(key, number) != number:
                raise Refused(
                    f"{api.array}[{number}]: {key.value} stands in {api.array}[{seen[key]}] too",
                    code="not_as_issued",
                )


def find_keys(atoms: Iterable[Atom]) -> list[Atom]:
    """What an element of ATOMS is known by."""
    atoms = list(atoms)
    chosen = ([atom for atom in atoms if atom.kind in kinds] for kinds in KEYS)
    return next((keys for keys in chosen if keys), [])


def compare(api: Api, array: Sequence[Object], number: int, place: Place) -> str:
    """How the response of PLACE, found at NUMBER of ARRAY, is not as it was issued, or ""."""
    elements = api.returnable(place.response)
    start = number - sum(element is not None for element in elements[: place.index])
    for at, element in enumerate(filter(None, elements), start):
        path = f"{api.array}[{at}]"
        if at < 0:
            return (
                f"{api.array} lacks what response {place.response.seq} began with: {brief(element)}"
            )
        if at >= len(array):
            return f"{path} is missing, response {place.response.seq} has {brief(element)}"
        if found := differ(api.normal(element), api.normal(array[at]), path):
            return f"{found} (response {place.response.seq})"
    return ""


def differ(issued: Json, returned: Json, path: str) -> str:
    """The first difference between two values, or ""."""
    if isinstance(issued, dict) and isinstance(returned, dict):
        for key in {**issued, **returned}:
            where = f"{path}.{key}"
            if key not in returned:
                return f"{where} is missing, issued was {brief(issued[key])}"
            if key not in issued:
                return f"{where} was never issued: {brief(returned[key])}"
            if found := differ(issued[key], returned[key], where):
                return found
        return ""
    if isinstance(issued, list) and isinstance(returned, list):
        for number, (before, after) in enumerate(zip(issued, returned, strict=False)):
            if found := differ(before, after, f"{path}[{number}]"):
                return found
        if len(issued) == len(returned):
            return ""
        longer = issued if len(issued) > len(returned) else returned
        word = "is missing, issued was" if longer is issued else "was never issued:"
        number = min(len(issued), len(returned))
        return f"{path}[{number}] {word} {brief(longer[number])}"
    if dumps(issued) == dumps(returned):
        return ""
    return f"{path} is {brief(returned)}, issued was {brief(issued)}"


def brief(value: Json) -> str:
    """VALUE as JSON, cut to a readable length."""
    text = dumps(value)
    return text if len(text) <= 100 else text[:97] + "..."
