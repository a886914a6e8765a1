"""How much of what a provider issued comes back: the numbers of a table of continuity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.loopback.apis import APIS
from tests.loopback.model import Api, Atom, Object, Recorded, Request

KINDS = ("seal", "reasoning", "id", "arguments")


def kept(requests: Sequence[Recorded]) -> tuple[Counter[str], Counter[str]]:
    """What was issued, and what of it the last of REQUESTS returns unmodified, by `Atom.kind`.

    REQUESTS are those of one conversation.  What another API or model issued does not count.
    """
    last = requests[-1]
    api = next(each for each in APIS if each.name == last.api)
    model = model_of(api, last)
    issued = count_atoms(
        api,
        (
            element
            for request in requests[:-1]
            if request.api == api.name and model_of(api, request) == model
            for element in request.issued
        ),
    )
    elements = last.json[api.array]
    returned = count_atoms(api, elements if isinstance(elements, list) else ())
    return by_kind(issued), by_kind(issued & returned)


def model_of(api: Api, request: Recorded) -> str:
    path = request.path.partition("?")[0]
    return api.model(Request(path=path, query={}, body=request.body, json=request.json))


def count_atoms(api: Api, elements: Iterable[Object]) -> Counter[Atom]:
    return Counter(atom for element in elements for atom in api.atoms(element))


def by_kind(atoms: Counter[Atom]) -> Counter[str]:
    found: Counter[str] = Counter()
    for atom, number in atoms.items():
        if atom.kind in KINDS:
            found[atom.kind] += number
    return found
