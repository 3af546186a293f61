"""The model of a follow-up's wording decides: it finds forms that no rule knows, and overrules a rule's false alarm."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from sessions.sales import FIRST

from nl2sql.sessions.detection import evidence_of, leanings_of, signs_of
from nl2sql.sessions.wording import Wording, packaged, tokens_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import fit_wording

UNKNOWN_TO_THE_RULES = ["can you drop the quarter", "I meant the North", "which regions", "the other regions"]
FALSE_ALARMS = [
    "no of sales per weekday in feb 2025",
    "turnout per state in the last general election",
    "headcount of nurses by shift",
]


@pytest.mark.parametrize("question", UNKNOWN_TO_THE_RULES)
def test_a_form_that_no_rule_knows_is_found_by_its_wording(question, sales):
    assert signs_of(question, sales.schema()) == []
    [sign] = evidence_of(question, [FIRST], sales)
    assert sign.kind == "wording" and sign.text in question


@pytest.mark.parametrize("question", FALSE_ALARMS)
def test_a_rule_s_sign_is_overruled_where_the_wording_as_a_whole_stands_alone(question, sales):
    assert signs_of(question, sales.schema()) != []
    assert evidence_of(question, [FIRST], sales) == []


def test_what_the_rules_find_stays_the_evidence_of_what_the_model_accepts(sales):
    question, schema = "What about Q4?", sales.schema()
    assert leanings_of(question, schema) == signs_of(question, schema) != []


def test_a_word_outside_the_vocabulary_stands_for_its_sort():
    model = Wording(frozenset(["from", "the"]), {}, 0.0)
    sorts = [
        model.sort_of(token, not at, {"product"}, {"colour"})
        for at, token in enumerate(tokens_of("Products from the North, 'x' colours 2nd zebra"))
    ]
    assert sorts == ["T", "from", "the", "N", "x", "@", "C", "#", "x"]


def test_features_say_how_long_a_sentence_is_what_it_names_and_what_the_rules_found():
    found = Wording(frozenset(["by"]), {}, 0.0).features(
        "by zebra", frozenset(["product"]), frozenset(), ["cue", "cue"]
    )
    assert found == {
        **dict.fromkeys(["by", "x", "^ by", "by x", "x $", "longer than 1", "no table", "names nothing"], 1.0),
        **dict.fromkeys(["lower case", "sign cue", "a sign"], 1.0),
    }


def test_the_packaged_model_weighs_signs_and_says_what_it_was_fitted_on():
    data = json.loads(files("nl2sql.sessions").joinpath("wording.json").read_text(encoding="utf-8"))
    assert set(data["fitted_on"]) > {"A", "B", "C"} and "dialogues fresh -k" not in data["fitted_on"]
    assert data["weights"]["a sign"] > 1 and len(packaged().weights) == len(data["weights"])


def test_a_model_fitted_on_some_authors_tells_the_turns_of_another():
    turns = fit_wording.written()
    model = fit_wording.fit([turn for turn in turns if turn.author in ("B", "C")])
    held = [turn for turn in turns if turn.author == "A"]
    right = fit_wording.follows(model, held) == [turn.follows for turn in held]
    assert right.mean() > 0.88
