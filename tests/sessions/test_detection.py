"""Follow-ups are recognised by their wording, and sentences that are whole by themselves are left alone."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from sessions.sales import FIRST

from nl2sql.sessions.detection import (
    LONGEST,
    Wording,
    evidence_of,
    leanings_of,
    names_nothing,
    packaged,
    tokens_of,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import fit_wording

FORMS = [case for case in fit_wording.written() if case.author == "forms"]


@pytest.mark.parametrize("question", ["What about Q4?", "Show me by region", "same but in Q4", "How many of those?"])
def test_the_specification_s_keywords_are_found(question, sales):
    [sign] = evidence_of(question, [FIRST], sales)
    assert sign.kind == "wording" and sign.text in question


@pytest.mark.parametrize(
    "question",
    [
        "What about the number of sales in quarter 4?",
        "Show me the products that are red.",
        "How many sales are there for each region, and which of them has the most?",
        "Which products that were listed in 2021 are also red?",
    ],
)
def test_a_sentence_that_is_whole_is_none_whatever_cue_words_it_holds(question, sales):
    assert evidence_of(question, [FIRST], sales) == []


def test_the_packaged_model_knows_the_forms_that_it_was_fitted_on():
    wrong = [case.text for case in FORMS if bool(leanings_of(case.text, case.schema)) != case.follows]
    assert len(FORMS) > 80 and len(wrong) <= 2, wrong


def test_without_a_history_there_is_no_evidence(sales):
    assert evidence_of("What about Q4?", [], sales) == []


def test_a_very_long_question_is_read_as_one_of_its_own(sales):
    padded = "What about Q4?" + " " * LONGEST
    assert evidence_of(padded.strip(), [FIRST], sales) and evidence_of(padded, [FIRST], sales) == []


def test_a_question_may_name_nothing_of_the_schema(sales):
    schema = sales.schema()
    assert names_nothing("Who won the match?", schema) and not names_nothing("Which products?", schema)


def test_a_word_outside_the_vocabulary_stands_for_its_sort():
    model = Wording(frozenset(["from", "the"]), {}, 0.0)
    sorts = [
        model.sort_of(token, not at, {"product"}, {"colour"})
        for at, token in enumerate(tokens_of("Products from the North, 'x' colours 2nd zebra"))
    ]
    assert sorts == ["T", "from", "the", "N", "x", "@", "C", "#", "x"]


def test_features_say_how_long_a_sentence_is_and_what_it_names():
    found = Wording(frozenset(["by"]), {}, 0.0).features("by zebra", frozenset(["product"]), frozenset())
    names = ["by", "x", "^ by", "by x", "x $", "longer than 1", "no table", "names nothing", "lower case"]
    assert found == dict.fromkeys(names, 1.0)


def test_the_packaged_model_says_what_it_was_fitted_on():
    data = json.loads(files("nl2sql.sessions").joinpath("wording.json").read_text(encoding="utf-8"))
    assert set(data["fitted_on"]) > {"A", "B", "C", "forms"}
    assert len(packaged().weights) == len(data["weights"])


def test_a_model_fitted_on_some_authors_tells_the_turns_of_another():
    turns = fit_wording.written()
    model = fit_wording.fit([turn for turn in turns if turn.author in ("B", "C")])
    held = [turn for turn in turns if turn.author == "A"]
    right = fit_wording.follows(model, held) == [turn.follows for turn in held]
    assert right.mean() > 0.88
