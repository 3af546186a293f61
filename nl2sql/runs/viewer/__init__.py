"""The runs of a folder in a browser, live: ``nl2sql runs view``.

``server`` listens on this machine only, ``pages`` makes the pages: the list of runs, the report of one run or of
several beside one another, a run in progress, and a page that executes SQL in the sandbox. Loads no model; writes
nothing but notes.
"""

from nl2sql.runs.viewer.pages import Pages
from nl2sql.runs.viewer.server import ViewServer

__all__ = ["Pages", "ViewServer"]
