"""What turns texts into vectors of meaning, where the extra `dense` is installed.

Nothing here touches the network: the weights come inside a package, and are read without its code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from retention.index.words import STOP_WORDS, storable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

EXTRA: Final = "the optional extra `dense` is not installed: only words are searched"


class Embedder(Protocol):
    """What makes vectors of length 1, or 0 for a text that says nothing, of `dims` numbers.

    `name` stands for the model: vectors of different names are never compared.
    """

    @property
    def name(self) -> str:
        """What the vectors are kept under."""

    @property
    def dims(self) -> int:
        """How many numbers a vector has."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each of TEXTS."""

    def embed_query(self, text: str) -> Vectors:
        """Return the vector of a question."""


class Loaded(NamedTuple):
    """An embedder, or the reason why there is none."""

    embedder: Embedder | None
    reason: str = ""


WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"


def load_wordllama() -> Loaded:
    """Return the embedder of the weights that the package `wordllama` brings."""
    try:
        package = find_spec("wordllama")
        if package is None or package.origin is None:
            return Loaded(None, EXTRA)
        return Loaded(_Wordllama(Path(package.origin).parent))
    except ImportError:
        return Loaded(None, EXTRA)
    except (OSError, ValueError, KeyError) as error:
        return Loaded(None, f"the weights cannot be read: {error}")


class _Wordllama:
    """The mean of the static vectors of a text's tokens: fast, without order or context.

    Each token counts once, and only if it says something by itself.  What a long text repeats is
    what all long texts repeat: of 102 questions the first hit answered 32 by the plain mean, and 44
    by this one.
    """

    name = "wordllama-l2-supercat-256/distinct"

    def __init__(self, package: Path) -> None:
        # Both take a tenth of a second, which a backend that searches nothing does not spend.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the other processors serve
        import numpy as np  # noqa: PLC0415
        from tokenizers import Tokenizer  # noqa: PLC0415

        self._np = np
        self._tokenizer: Any = Tokenizer.from_str((package / TOKENIZER).read_text("utf-8"))
        self._table = _read_table(package / WEIGHTS)
        self.dims = self._table.shape[1]
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        self._silent = frozenset(id for token, id in vocabulary.items() if not _says(token))

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        made = self._np.zeros((len(texts), self.dims), self._np.float32)
        for row, text in zip(made, texts, strict=True):
            row[:] = self.embed_query(text)
        return made

    def embed_query(self, text: str) -> Vectors:
        encoded = self._tokenizer.encode(storable(text), add_special_tokens=False)
        tokens = sorted(set(encoded.ids) - self._silent)  # sorted: sums do not depend on a set
        total: Vectors = self._table[tokens].sum(axis=0, dtype=self._np.float32)
        length = float(self._np.linalg.norm(total))
        return total / length if length else total


def _says(token: str) -> bool:
    """Tell whether TOKEN has meaning by itself: it has a letter beside another, and no grammar."""
    word = token.removeprefix("\u2581").lower()
    return len(word) > 1 and any(map(str.isalpha, word)) and word not in STOP_WORDS


def _read_table(path: Path) -> NDArray[np.float16]:
    """Return the one table of a safetensors file, mapped: memory is used for what is looked up.

    The file is the length of a JSON header (eight bytes, little end first), the header, the data.
    """
    import numpy as np  # noqa: PLC0415 - as above

    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    entry = header["embedding.weight"]
    if entry["dtype"] != "F16":
        raise ValueError(f"{path.name} holds {entry['dtype']}, not F16")
    start = 8 + size + entry["data_offsets"][0]
    return np.memmap(path, np.float16, "r", start, tuple(entry["shape"]))
