"""A follow-up of a few words edits the previous query where it can mean one thing only; the rest is the model's."""

from __future__ import annotations

import pytest
from sessions.sales import TOP

from nl2sql.sessions.edits import edited

RED = "SELECT COUNT(*) FROM products WHERE colour = 'red'"
NAMES = "SELECT name FROM products WHERE colour = 'red' ORDER BY price"
SOLD = "SELECT SUM(s.revenue) FROM sales AS s JOIN regions AS r ON r.region_id = s.region_id WHERE r.name = 'North'"
DONE = [
    (RED, "and green?", "SELECT COUNT(*) FROM products WHERE colour = 'green'"),
    (RED, "sorry, I meant blue", "SELECT COUNT(*) FROM products WHERE colour = 'blue'"),
    ("SELECT COUNT(*) FROM products", "only red ones", RED),
    ("SELECT COUNT(*) FROM sales", "per quarter", "SELECT quarter, COUNT(*) FROM sales GROUP BY quarter"),
    (NAMES, "split it by colour", "SELECT colour, COUNT(*) FROM products WHERE colour = 'red' GROUP BY colour"),
    (NAMES, "how many is that?", RED),
    (NAMES, "price too", "SELECT name, price FROM products WHERE colour = 'red' ORDER BY price"),
    (SOLD, "and South?", SOLD.replace("North", "South")),
    (SOLD, "make that the average", SOLD.replace("SUM", "AVG")),
    (SOLD, "by region name", f"{SOLD.replace('SELECT', 'SELECT r.name,')} GROUP BY r.name"),
    (TOP, "top 3 instead", TOP.replace("LIMIT 10", "LIMIT 3")),
    (
        "SELECT name FROM products WHERE product_id IN (SELECT product_id FROM sales)",
        "how many are there?",
        "SELECT COUNT(*) FROM products WHERE product_id IN (SELECT product_id FROM sales)",
    ),
]
LEFT = [
    (RED, "not green"),  # a negation
    (RED, "the expensive green ones"),  # a word that nothing stands for
    (RED, "and only the green ones"),  # five words
    (RED, "per region"),  # a table that the query does not read
    (RED, "how many?"),  # a count already
    (TOP, "how many is that?"),  # of the ten, or of all?
    (TOP, "per colour"),  # of the ten, or of all?
    (NAMES, "top 3"),  # nothing was cut
    (NAMES, "by price"),  # an order, or a group?
    ("SELECT AVG(price) FROM products WHERE colour = 'red' OR fragile = 1", "and green?"),
    ("SELECT name FROM products WHERE colour = 'red' UNION SELECT name FROM regions", "green"),
    ("DROP TABLE products", "green"),
    ("SELECT", "green"),
]


@pytest.mark.parametrize(("before", "question", "after"), DONE)
def test_a_few_words_edit_the_previous_query(before, question, after, sales):
    assert edited(question, before, sales) == after


@pytest.mark.parametrize(("before", "question"), LEFT)
def test_what_may_mean_something_else_is_left_to_the_model(before, question, sales):
    assert edited(question, before, sales) == ""
