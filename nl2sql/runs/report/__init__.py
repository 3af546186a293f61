"""The report of one or several runs: a self-contained HTML file with every trace in it; ``nl2sql report``.

``collect`` reads run folders, ``episodes`` packs the traces, ``plots`` draws; the page is ``page.html``, ``page.css``,
``page.js``. Nothing is loaded from a network, by the page or by this package; no model is needed.
"""

from nl2sql.runs.report.page import View, report_html, view, write_report

__all__ = ["View", "report_html", "view", "write_report"]
