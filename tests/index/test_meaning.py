"""Vectors: what gets one, kept by the digest of what they are of, searched and combined."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from retention.evidence.chunking import HARD_MAX
from retention.evidence.views import VIEW
from retention.index import Filters, Index
from retention.index import embedding as embedding_module
from retention.index.combining import Candidate, combine
from retention.index.embedding import EXTRA, load_wordllama
from retention.index.lexical import Hit
from retention.index.passages import PASSAGE, embedded, passages
from retention.index.vectors import BLOCK
from retention.model import Chunk, EventKind
from tests.index.build import Themes, add, embed, entry, said

# What is embedded


def test_what_was_said_is_embedded_whole_and_by_passages() -> None:
    text = "A sentence of some length that says a thing. " * 30

    (span, whole), *parts = embedded(Chunk(start=0, end=0, kind=EventKind.USER), text)

    assert span is None
    assert whole == text
    assert "".join(part for _, part in parts) == text
    assert all(span is not None and text[slice(*span)] == part for span, part in parts)
    assert all(PASSAGE // 2 < len(part) <= PASSAGE for _, part in parts[:-1])
    assert all(part.endswith(". ") for _, part in parts)


@pytest.mark.parametrize("text", ["", "short", "x" * PASSAGE])
def test_a_short_text_has_no_passages(text: str) -> None:
    assert list(passages(text)) == []


@pytest.mark.parametrize(
    "text", ["x" * 1000, "\n" * 1000, " ".join(["word"] * 300), "é\ud800" * 400]
)
def test_passages_join_to_any_text(text: str) -> None:
    assert "".join(text[start:end] for start, end in passages(text)) == text


def test_of_a_tools_output_the_view_and_the_problems_are_embedded() -> None:
    body = [f"step {n} is quiet" for n in range(2000)]
    body[1000] = "fatal: the disk is on fire"
    text = "[tool_output bash]\n" + "\n".join(body) + "\n"
    chunk = Chunk(start=0, end=len(text), kind=EventKind.TOOL_OUTPUT, whole=True)

    (_, view), *parts = embedded(chunk, text)

    assert len(view) <= HARD_MAX < len(text)
    assert [part for _, part in parts if "the disk is on fire" in part]
    assert all(len(part) <= 500 for _, part in parts)


# Filling


def test_vectors_are_made_in_batches_and_kept_by_digest(dense: Index, themes: Themes) -> None:
    made = said("the sea", "a flame", "the sea")
    dense.update(entry(), made)
    assert dense.counts().unembedded == 3
    assert [w.number for w in dense.unembedded(2)] == [2, 1]

    assert embed(dense, ("s", made), limit=1) == 3

    assert sorted(themes.embedded) == ["a flame", "the sea"]
    assert dense.counts() == (1, 3, 2, 0, {VIEW: 3})
    other = said("a flame", "some rain")
    dense.update(entry("t"), other)
    embed(dense, ("t", other))
    assert sorted(themes.embedded) == ["a flame", "some rain", "the sea"]


def test_a_rebuild_and_a_moved_chunk_embed_nothing_anew(dense: Index, themes: Themes) -> None:
    made = said("the sea", "a flame")
    dense.update(entry(), made)
    embed(dense, ("s", made))
    before = list(themes.embedded)

    moved = said("a flame", "the sea")
    dense.update(entry(stamp=b"2"), moved, made)
    embed(dense, ("s", moved))
    dense.clear()
    dense.update(entry(), made)
    embed(dense, ("s", made))

    assert themes.embedded == before
    assert [m.number for m in dense.search("river", mode="dense")] == [0]


def test_it_goes_on_where_it_was_stopped(path: Path, themes: Themes) -> None:
    """An embedder that fails leaves what was stored before, and nothing half."""
    index = Index.open(path, themes)
    index.clear()
    made = said(*[f"sea {n}" for n in range(10)])
    index.update(entry(), made)
    texts = {document.number: document.text for document in made}

    def stop(owner: str, id: str, number: int) -> str:
        if number == 3:
            raise KeyboardInterrupt
        return texts[number]

    assert index.embed_some(stop, 4) == 4
    with pytest.raises(KeyboardInterrupt):
        index.embed_some(stop, 4)
    index.close()

    again = Themes()
    index = Index.open(path, again)
    assert index.counts().unembedded == 6
    embed(index, ("s", made))
    assert sorted(again.embedded) == sorted(texts[n] for n in range(6))
    index.close()


def test_a_chunk_without_a_text_or_a_meaning_is_not_asked_for_again(dense: Index) -> None:
    dense.update(entry(), said("neither", "gone"))

    assert dense.embed_some(lambda *key: "neither" if key[2] == 0 else None, 10) == 2

    assert dense.embed_some(lambda *key: None, 10) == 0
    assert dense.counts().vectors == 0


def test_another_model_has_vectors_of_its_own(path: Path, themes: Themes) -> None:
    index = Index.open(path, themes)
    index.clear()
    made = said("the sea")
    index.update(entry(), made)
    embed(index, ("s", made))
    index.close()
    later = Themes()
    later.name = "later"  # type: ignore[misc]
    index = Index.open(path, later)

    assert index.counts().unembedded == 1
    assert index.search("river", mode="dense") == []
    embed(index, ("s", made))
    assert len(index.search("river", mode="dense")) == 1
    index.close()


# Searching


@pytest.fixture
def filled(dense: Index) -> Index:
    made = said("the sea is wet", "flame and smoke", "gravel")
    dense.update(entry(), made)
    embed(dense, ("s", made))
    return dense


def test_meaning_finds_what_shares_no_word(filled: Index) -> None:
    matches = filled.search("river rain")

    assert [(m.number, m.found) for m in matches] == [(0, "meaning")]
    assert filled.search("river rain", mode="lexical") == []


def test_a_passage_is_a_hit_of_its_chunk_and_says_where(filled: Index) -> None:
    text = "wet rain\n" * 26 + "hot ash falls now\n" * 3
    mixed = said(text)
    filled.update(entry("t"), mixed)
    embed(filled, ("t", mixed))

    match, *others = (m for m in filled.search("smoke", mode="dense") if m.id == "t")

    assert match.span is not None
    assert text[slice(*match.span)] == "hot ash falls now\n" * 3
    assert others == []


def test_words_go_before_meaning(filled: Index) -> None:
    matches = filled.search("gravel sea")

    assert [(m.number, m.found) for m in matches[:2]] == [(2, "some words"), (0, "some words")]
    assert filled.search("wet sea")[0].found == "words"


def test_filters_hold_for_meaning(filled: Index) -> None:
    rain = said("rain")
    filled.update(entry("t", kind="conversation", conversation="c", time=9.0), rain)
    embed(filled, ("t", rain))

    def ids(**filters: object) -> list[str]:
        return [m.id for m in filled.search("river", Filters(**filters), mode="dense")]  # type: ignore[arg-type]

    assert sorted(ids()) == ["s", "t"]
    assert ids(conversation="c", only=True) == ids(kind="conversation") == ids(since=5.0) == ["t"]
    assert ids(tool="bash") == []
    assert ids(conversation="c") == ["t", "s"]


def test_a_removed_chunk_is_not_found_by_meaning(filled: Index) -> None:
    made = said("the sea is wet", "flame and smoke", "gravel")
    assert filled.search("river")

    filled.update(entry(stamp=b"2"), [], made[:1])

    assert filled.search("river") == []


def test_what_another_opener_embedded_is_found(filled: Index, path: Path) -> None:
    assert len(filled.search("rain", mode="dense")) == 1
    other = Index.open(path, Themes())
    made = said("the river", "the wet rain")
    other.update(entry("t"), made)
    embed(other, ("t", made))
    other.close()

    assert len(filled.search("rain", mode="dense")) == 3


def test_more_vectors_than_a_block_holds(dense: Index) -> None:
    texts = [f"sea {n}" for n in range(BLOCK + 10)] + ["flame"]
    made = said(*texts)
    dense.update(entry(), made)
    embed(dense, ("s", made), limit=3000)

    assert [m.number for m in dense.search("hot", mode="dense")] == [BLOCK + 10]
    dense.drop("o", "s", made)
    assert dense.search("hot", mode="dense") == []
    fewer = said("flame")
    dense.update(entry(), fewer)
    embed(dense, ("s", fewer))
    assert len(dense.search("hot", mode="dense")) == 1
    assert dense._matrix is not None
    assert sum(len(block.places) for block in dense._matrix._blocks) == 1


def test_what_is_remembered_of_a_file_is_not_taken_for_the_next(filled: Index, path: Path) -> None:
    assert filled.search("river", mode="dense")
    for file in path.iterdir():
        file.unlink()
    assert filled.needs_rebuild
    filled.clear()

    made = said("flame")
    filled.update(entry(), made)
    embed(filled, ("s", made))

    assert filled.search("river", mode="dense") == []
    assert len(filled.search("smoke", mode="dense")) == 1


def test_without_an_embedder_words_alone_are_searched(index: Index) -> None:
    add(index, "s", "the sea")

    assert not index.dense
    assert index.embed_some(lambda *key: "the sea", 10) == 0
    assert index.counts().unembedded == 0
    assert index.search("river", mode="dense") == []
    assert len(index.search("sea", mode="combined")) == 1


# Combining


def test_the_order_of_one_answer() -> None:
    meaning = [Candidate(n, 0.9, "meaning", (n, n + 1)) for n in (4, 5, 1)]

    made = combine([Hit(1, 3.0)], [Hit(1, 0.9), Hit(2, 0.8), Hit(3, 0.2), Hit(4, 0.1)], meaning)

    assert [(c.chunk, c.found) for c in made] == [
        (1, "words"), (2, "some words"), (4, "some words"), (3, "some words"), (5, "meaning"),
    ]  # fmt: skip


def test_meaning_alone_keeps_its_order() -> None:
    meaning = [Candidate(n, 0.5, "meaning") for n in (7, 3, 9)]

    assert combine([], [], meaning) == meaning


# The weights that a package brings


def test_wordllama_knows_what_is_meant() -> None:
    embedder = load_wordllama().embedder
    assert embedder is not None
    texts = ["the database server crashed at night", "we ate soup and bread for dinner"]

    near, far = embedder.embed_documents(texts) @ embedder.embed_query("why did MySQL go down?")

    assert near > far + 0.1
    assert embedder.dims == 256
    assert not embedder.embed_documents(["", "…", "\udcff"]).any()


def test_it_finds_a_paraphrase(path: Path) -> None:
    index = Index.open(path, load_wordllama().embedder)
    index.clear()
    made = said("The invoice was paid twice by the customer.", "The build needs a newer compiler.")
    index.update(entry(), made)
    embed(index, ("s", made))

    matches = index.search("money charged double")

    assert (matches[0].number, matches[0].found) == (0, "meaning")
    index.close()


def test_without_the_extra_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_module, "find_spec", lambda name: None)

    assert load_wordllama() == (None, EXTRA)


@pytest.mark.parametrize("module", ["numpy", "tokenizers"])
def test_without_a_part_of_the_extra_there_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    assert load_wordllama() == (None, EXTRA)


def test_weights_of_another_form_are_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = load_wordllama.__globals__["find_spec"]("wordllama")
    for name in (embedding_module.TOKENIZER, embedding_module.WEIGHTS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
    tokenizer = Path(real.origin).parent / embedding_module.TOKENIZER
    (tmp_path / embedding_module.TOKENIZER).write_bytes(tokenizer.read_bytes())
    header = b'{"embedding.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}'
    weights = len(header).to_bytes(8, "little") + header + b"\0" * 4
    (tmp_path / embedding_module.WEIGHTS).write_bytes(weights)
    real.origin = str(tmp_path / "__init__.py")
    monkeypatch.setattr(embedding_module, "find_spec", lambda name: real)

    embedder, reason = load_wordllama()

    assert embedder is None
    assert "F32" in reason


def test_numpy_is_not_loaded_before_it_is_needed() -> None:
    code = "import retention.index, sys; sys.exit('numpy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
