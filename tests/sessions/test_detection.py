"""Follow-ups are recognised by evidence, and sentences that are whole by themselves are left alone."""

from __future__ import annotations

import pytest
from sessions.sales import FIRST

from nl2sql.sessions.detection import LONGEST, evidence_of, names_nothing, signs_of

FOLLOW_UPS = [
    ("What about Q4?", "cue"),
    ("Show me by region", "cue"),
    ("same but in Q4", "cue"),
    ("by region", "cue"),
    ("only the red ones", "cue"),
    ("Back to the products: which of them are red?", "cue"),
    ("How many of those are red?", "pronoun"),
    ("Which ones?", "pronoun"),
    ("Who bought that product?", "pronoun"),
    ("What regions do they belong to?", "pronoun"),
    ("How many are there?", "ellipsis"),
    ("red?", "ellipsis"),
    ("cheapest first", "ellipsis"),
    ("By whom?", "cue"),
    ("What is their price?", "pronoun"),
    ("only where there are more than 12", "cue"),
    ("but only what was listed since 2020, that year included", "cue"),
    ("And the regions, for which products were they?", "cue"),
    ("And the earlier region, what is its name?", "cue"),
    ("Which regions are among them? Each name once.", "cue"),
    ("how many products in each?", "ellipsis"),
    ("how many products each", "ellipsis"),
    ("the two dearest, name and price, higher price first", "ellipsis"),
    ("Regions with two or more.", "ellipsis"),
    ("Which regions met? Name and id.", "ellipsis"),
    ("who won it all", "pronoun"),
    ("who paid?", "ellipsis"),
    ("Include the products.", "ellipsis"),
    ("sales over 20", "ellipsis"),
    ("What is the average?", "ellipsis"),
    ("Which product has the cheapest?", "ellipsis"),
    ("Which are fragile?", "ellipsis"),
    ("Which region has the most?", "ellipsis"),
    ("How many sales does each have?", "ellipsis"),
    ("Compare the results by region", "ellipsis"),
    ("List the seven products with their price.", "ellipsis"),
    ("Which were the two in May?", "ellipsis"),
    ("Can you give me the names?", "ellipsis"),
    ("Give me the monthly counts.", "ellipsis"),
    ("Include the prices and sort from highest to lowest.", "ellipsis"),
    ("What are the sales behind the 2023 figure?", "ellipsis"),
    ("How many are in each region?", "ellipsis"),
    ("How many sales of his products do we have in total?", "pronoun"),
    ("product colour", "ellipsis"),
    ("each region by its name", "ellipsis"),
    ("price over 20", "ellipsis"),
    ("which day was that?", "pronoun"),
    ("wich of them are red", "cue"),
    ("separate figures for the regions", "ellipsis"),
    ("per product name", "cue"),
    ("In which regions can I find them now?", "pronoun"),
    ("To return to 2023: how many sales went into the total?", "cue"),
    ("quarter four?", "ellipsis"),
    ("Who buys products like them? Sort them by price", "pronoun"),
]
WHOLE = [
    "Which products are red?",
    "Show me the products that are red.",
    "What about the number of sales in quarter 4?",
    "How many sales are there for each region, and which of them has the most?",
    "List the regions and their sales.",
    "Which products that were listed in 2021 are also red?",
    "For each region, how many sales are there?",
    "Find the products for those regions that have sales.",
    "average price of the products",
    "region names",
    "List the three products with the highest price.",
    "Instead, tell me the number of regions.",
    "I'd also like to see the names of the regions.",
    "Show the products and sort the result by price.",
    "wich products are red",
    "Kindly tell on which day the product Anvil was listed.",
    "For each region, count the number of sales.",
    "Which products have fewer than 3 sales?",
    "Region 4 has how many sales?",
    "Which products had sales on 2021-07-01, and what was the total of that day?",
    "Show the names of the products in alphabetical order that have a price.",
    "On average, how large are the sales?",
    "On average how large is the revenue of the sales?",
    "Quarter 4 has how many sales?",
    "How many products does the region North have?",
    "What is the name of the product that has the highest price, and in which region was it sold?",
]


@pytest.mark.parametrize(("question", "kind"), FOLLOW_UPS)
def test_the_rules_find_a_sign_in_each_form(question, kind, sales):
    signs = signs_of(question, sales.schema())
    assert kind in {sign.kind for sign in signs}
    assert all(sign.text for sign in signs)


@pytest.mark.parametrize("question", WHOLE)
def test_the_rules_find_none_in_a_sentence_that_is_whole_whatever_cue_words_it_holds(question, sales):
    assert signs_of(question, sales.schema()) == []


def test_without_a_history_there_is_no_evidence(sales):
    assert evidence_of("What about Q4?", [], sales) == []


def test_a_very_long_question_is_read_as_one_of_its_own(sales):
    assert evidence_of("and " * LONGEST, [FIRST], sales) == []


def test_a_value_of_the_previous_query_s_tables_is_evidence_where_nothing_else_is_named(sales):
    assert [sign.kind for sign in evidence_of("Is Anvil still available", [FIRST], sales)] == ["value"]
    assert evidence_of("Is Xylophone still available", [FIRST], sales) == []


def test_a_question_may_name_nothing_of_the_schema(sales):
    schema = sales.schema()
    assert names_nothing("Who won the match?", schema) and not names_nothing("Which products?", schema)
