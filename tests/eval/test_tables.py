"""One table, three forms."""

from __future__ import annotations

from nl2sql.eval.tables import records_text, table_html, table_markdown, table_text

ROWS = [["", "EX", "n"], ["react", "20.0", "40"], ["a | b", "5.0", "120"]]


def test_text_has_the_first_column_to_the_left_and_numbers_to_the_right() -> None:
    assert table_text(ROWS) == [
        "         EX    n",
        "----------------",
        "react  20.0   40",
        "a | b   5.0  120",
    ]


def test_html_escapes_cells_and_notes() -> None:
    shown = table_html([["<b>"], ["1 & 2"]], ["x < y"])
    assert shown == "<table><tr><th>&lt;b&gt;</th></tr><tr><td>1 &amp; 2</td></tr></table><div>x &lt; y</div>"
    assert table_html([["a"]]) == "<table><tr><th>a</th></tr></table>"


def test_markdown_keeps_a_bar_inside_its_cell() -> None:
    assert table_markdown(ROWS).splitlines()[::3] == ["|  | EX | n |", "| a \\| b | 5.0 | 120 |"]


def test_a_result_is_cut_at_its_widest_and_ends_without_blanks() -> None:
    assert records_text([["name", "n"], ["x" * 50, "1"], ["y", ""]], widest=4) == ["name  n", "xxxx  1", "y"]
