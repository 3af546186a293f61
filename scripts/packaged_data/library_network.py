# ruff: noqa: SIM905 (a paragraph of words is easier to read and to change than a column of them)
"""Tarn Valley Libraries: branches, patrons, titles and their copies, loans, holds, fines."""

from __future__ import annotations

from datetime import date

from .kit import Draw, Tables, Value, eighths, later
from .words import FAMILY, GIVEN

BRANCHES = [
    (1, "Tarnmouth Central", "Harbour", "main", None, 1911, 5200),
    (2, "Eskdale", "Uplands", "main", None, 1954, 2600),
    (3, "Millrace", "Harbour", "neighbourhood", 1, 1967, 640),
    (4, "Cobble Hill", "Old Town", "neighbourhood", 1, 1932, 480),
    (5, "Larkfield", "Old Town", "neighbourhood", 1, 1988, 720),
    (6, "Seven Oaks", "Riverside", "neighbourhood", 1, 2003, 910),
    (7, "Quarry Bank", "Uplands", "neighbourhood", 2, 1974, 350),
    (8, "Hollin Bridge", "Uplands", "neighbourhood", 2, 1981, 410),
    (9, "Fernside", "Riverside", "neighbourhood", 2, 1999, 560),
    (10, "Coast Bus", "Harbour", "mobile", 1, 2011, None),
    (11, "Valley Bus", "Uplands", "mobile", 2, 2016, None),
    (12, "Sandgate", "Harbour", "neighbourhood", 3, 2023, 300),  # a reading point: no copies of its own yet
]
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
TYPES = [
    ("AD", "Adult", 12, 28),
    ("JU", "Junior", 8, 28),
    ("ST", "Student", 20, 42),
    ("SE", "Senior", 15, 42),
    ("IN", "Institution", 60, 90),
]
COUNTRIES = ("Ireland", "Nigeria", "Sweden", "Japan", "Brazil", "Scotland", "Hungary", "India", "Canada", "France")
GENRES = {"crime": 9, "romance": 5, "history": 8, "travel": 5, "science": 6, "poetry": 4, "fantasy": 8, "cookery": 4}
LANGUAGES = {"en": 70, "fr": 9, "pl": 8, "es": 7, "sv": 4}
HEADS = (
    "Salt Winter Lantern Copper Marsh Glass Thunder Paper Heron Iron Ivory Midnight Orchard River Silent Velvet Stone "
    "Broken Hidden Crimson Second Last Distant Northern Hollow Burning Empty Golden Patient Restless"
).split()
TAILS = (
    "Garden|Letters|Coast|Bridge|Kitchen|Atlas|Season|Harbour|Machine|Inheritance|Road|Choir|Island|Almanac|Weather|"
    "Tower|Witness|Bakery|Cartographer|Winter|Meadow|Clock|Passage|Daughter|Archive"
).split("|")
END = date(2024, 9, 30)


def tables(draw: Draw) -> Tables:
    titles = _titles(draw)
    authors, credits = _authors(draw, titles)
    copies = _copies(draw, titles)
    patrons = _patrons(draw)
    loans = _loans(draw, copies, patrons)
    counts: dict[Value, int] = {}
    for loan in loans:
        counts[loan[2]] = counts.get(loan[2], 0) + 1
    out_now = {loan[1] for loan in loans if loan[5] is None}
    return {
        "branches": list(BRANCHES),
        "opening hours": _hours(draw),
        "patron_types": list(TYPES),
        "patrons": [(*row, counts.get(row[0], 0)) for row in patrons],
        "authors": authors,
        "titles": titles,
        "title_authors": credits,
        "copies": [(*row[:3], "on loan" if row[0] in out_now else row[3], *row[4:]) for row in copies],
        "loans": loans,
        "holds": _holds(draw, titles, patrons),
        "fines": _fines(draw, loans),
    }


def _hours(draw: Draw) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for branch, _, _, kind, *_ in BRANCHES:
        days = DAYS if branch == 1 else DAYS[:6] if kind != "mobile" else draw.some(DAYS[:5], 3)
        for day in sorted(days, key=DAYS.index):
            if kind == "neighbourhood" and draw.chance(0.2):
                continue
            late = kind == "main" and day in ("Tuesday", "Thursday")
            opens = draw.pick(("09:00", "09:30", "10:00")) if day != "Sunday" else "12:00"
            closes = "20:00" if late else draw.pick(("16:00", "17:00", "17:30", "18:00"))
            rows.append((branch, day, opens, closes))
    return rows


def _titles(draw: Draw) -> list[tuple[Value, ...]]:
    names = draw.some([f"The {head} {tail}" if (len(head) + len(tail)) % 2 else f"{head} {tail}"
                       for head in HEADS for tail in TAILS if head != tail], 380)  # fmt: skip
    rows: list[tuple[Value, ...]] = []
    for number, name in enumerate(names, start=201):
        genre = draw.weighted(GENRES)
        audience = draw.weighted({"adult": 7, "teen": 2, "children": 2})
        year = None if draw.chance(0.05) else 2024 - int(abs(draw.bell(0, 22)))
        pages = None if draw.chance(0.08) else 40 + 4 * draw.between(5, 140)
        rows.append((number, name, genre, draw.weighted(LANGUAGES), audience, year, pages))
    return rows


def _authors(draw: Draw, titles: list[tuple[Value, ...]]) -> tuple[list[tuple[Value, ...]], list[tuple[Value, ...]]]:
    """140 authors, the last eight without any title; a title has one to three credits in up to three roles."""
    taken: set[str] = set()
    authors: list[tuple[Value, ...]] = []
    for number in range(1, 141):
        country = None if draw.chance(0.1) else draw.pick(COUNTRIES)
        born = None if draw.chance(0.15) else draw.between(1928, 1996)
        authors.append((number, draw.name(GIVEN, FAMILY, taken), country, born))
    credits: list[tuple[Value, ...]] = []
    for row in titles:
        people = draw.some(range(1, 133), draw.weighted({1: 72, 2: 22, 3: 6}))
        for position, person in enumerate(people):
            role = "author" if position == 0 else draw.weighted({"author": 4, "illustrator": 3, "translator": 3})
            credits.append((row[0], person, role))
        if row[4] == "children" and draw.chance(0.3):
            credits.append((row[0], people[0], "illustrator"))
    return authors, credits


def _copies(draw: Draw, titles: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    weights = dict(zip(range(1, 12), (30, 16, 7, 6, 7, 8, 5, 5, 6, 3, 3), strict=True))
    rows: list[tuple[Value, ...]] = []
    for title in titles:
        for _ in range(draw.weighted({0: 6, 1: 40, 2: 28, 3: 14, 5: 8, 8: 3})):
            status = draw.weighted({"available": 90, "lost": 4, "repair": 5})
            price = None if draw.chance(0.07) else eighths(max(3.75, draw.bell(17, 9)), 0.25)
            acquired = draw.day(date(2012, 1, 1), date(2023, 6, 30)).isoformat()
            rows.append((4001 + len(rows), title[0], draw.weighted(weights), status, price, acquired))
    return rows


def _patrons(draw: Draw) -> list[tuple[Value, ...]]:
    taken: set[str] = set()
    weights = dict(zip(range(1, 13), (22, 13, 8, 6, 8, 9, 5, 5, 7, 4, 4, 2), strict=True))
    rows: list[tuple[Value, ...]] = []
    for number in range(1, 461):
        kind = draw.weighted({"AD": 46, "JU": 20, "ST": 16, "SE": 15, "IN": 0.0})
        born = {"AD": (1962, 2003), "JU": (2009, 2017), "ST": (1998, 2006), "SE": (1936, 1958)}[kind]
        name = draw.name(GIVEN, FAMILY, taken)
        given, family = name.lower().split()
        email = f"{given}.{family}@{draw.pick(('post', 'mail', 'inbox'))}.example" if draw.chance(0.8) else None
        joined = draw.day(date(2015, 1, 1), date(2024, 6, 30))
        status = draw.weighted({"active": 84, "blocked": 6, "expired": 10})
        rows.append(
            (number, name, kind, draw.weighted(weights), None if draw.chance(0.04) else draw.between(*born), email,
             status, joined.isoformat(), draw.day(joined, END).isoformat())
        )  # fmt: skip
    return rows


def _loans(draw: Draw, copies: list[tuple[Value, ...]], patrons: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """Each copy is lent again and again, never to two patrons at once; some patrons and copies have no loan."""
    days = {code: loan_days for code, _, _, loan_days in TYPES}
    readers = [row for row in patrons if int(str(row[0])) % 9]
    weight = {row[0]: draw.weighted({1: 5, 3: 4, 9: 2}) for row in readers}
    found: list[tuple[date, Value, Value, date, date | None, int]] = []
    for copy in copies:
        day = draw.day(date(2023, 1, 1), date(2023, 9, 1))
        while day <= END and not draw.chance(0.12):
            reader = draw.pick(readers)
            while draw.between(1, 9) > weight[reader[0]] or str(reader[7]) > day.isoformat():
                reader = draw.pick(readers)
            renewals = draw.weighted({0: 75, 1: 18, 2: 7})
            due = later(day, days[str(reader[2])] * (1 + renewals))
            back = later(due, -draw.between(1, 25) if draw.chance(0.8) else draw.between(1, 60))
            found.append((day, copy[0], reader[0], due, back if back <= END else None, renewals))
            day = later(back, draw.between(3, 160))
    return [
        (90001 + number, copy, reader, day.isoformat(), due.isoformat(), back.isoformat() if back else None, renewals)
        for number, (day, copy, reader, due, back, renewals) in enumerate(sorted(found, key=lambda loan: loan[:3]))
    ]


def _holds(draw: Draw, titles: list[tuple[Value, ...]], patrons: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    found: dict[tuple[Value, ...], tuple[Value, ...]] = {}
    for _ in range(420):
        patron = draw.pick(patrons)
        first = max(date.fromisoformat(str(patron[7])), date(2023, 6, 1))
        key = (patron[0], draw.pick(titles[:140])[0], draw.day(first, END).isoformat())
        status = draw.weighted({"waiting": 4, "ready": 2, "collected": 8, "expired": 2})
        found[key] = (*key, status)
    return [found[key] for key in sorted(found, key=lambda key: (str(key[2]), key))]


def _fines(draw: Draw, loans: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for loan in loans:
        due, back = str(loan[4]), loan[5]
        late = back is not None and str(back) > due
        if not (late and draw.chance(0.7)) and not draw.chance(0.015):
            continue
        reason = "overdue" if late else draw.pick(("damage", "lost card"))
        amount = draw.between(2, 40) * 0.25 if late else draw.between(10, 60) * 0.5
        issued = date.fromisoformat(str(back or due))
        paid = later(issued, draw.between(0, 45)).isoformat() if draw.chance(0.7) else None
        rows.append((6001 + len(rows), loan[0], reason, amount, issued.isoformat(), paid))
    return rows
