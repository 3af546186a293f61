# ruff: noqa: SIM905 (a paragraph of words is easier to read and to change than a column of them)
"""Sundrift Regional Railway: stations, lines and their stops, vehicles, train runs, delays, ticket sales."""

from __future__ import annotations

from datetime import date

from .kit import Draw, Tables, Value, later

STATIONS = [
    ("SUN", "Sundrift Central", "Sundrift", 8, 1, "1889-06-01"),
    ("SUH", "Sundrift Harbour", "Sundrift", 4, 1, "1902-05-15"),
    ("PEL", "Pelham Cross", "Pelham", 5, 1, "1889-06-01"),
    ("OKE", "Okehurst", "Okehurst", 2, 0, "1893-09-20"),
    ("BRI", "Brindle Bay", "Brindle", 3, 1, "1911-07-02"),
    ("TOW", "Towan Sands", "Brindle", 2, 1, "1911-07-02"),
    ("WES", "Westmarch", "Westmarch", 4, 1, "1897-04-11"),
    ("HEX", "Hexley", "Westmarch", 2, 0, None),
    ("DUN", "Dunmore Halt", "Dunmore", 1, 0, None),
    ("LIN", "Linfold", "Linfold", 2, 1, "1924-10-01"),
    ("AIR", "Linfold Airport", "Linfold", 2, 1, "1999-03-28"),
    ("GRE", "Greywater", "Greywater", 3, 0, "1897-04-11"),
    ("MOS", "Mossend", "Greywater", 1, 0, "1930-08-09"),
    ("KIL", "Kilbracken", "Kilbracken", 2, 0, "1904-11-30"),
    ("SLA", "Slate Quarry", "Kilbracken", 1, 0, None),
    ("FER", "Ferrybridge Road", "Pelham", 2, 1, "1958-02-17"),
    ("UNI", "University", "Sundrift", 2, 1, "1976-09-06"),
    ("ORC", "Orchard Park", "Sundrift", 2, 1, "2008-12-14"),
    ("VAL", "Valehead", "Valehead", 3, 1, "1904-11-30"),
    ("NOR", "Norwick", "Norwick", 2, 0, "1915-06-05"),
    ("CAP", "Cape Lorne", "Norwick", 1, 0, "1915-06-05"),
    ("MEA", "Meadowhall Green", "Okehurst", 2, 1, "2021-05-30"),  # opened, but on no line yet
]
LINES = [
    (1, "Harbour Line", "blue", 1902, "SUH SUN UNI PEL FER BRI TOW".split()),
    (2, "Western Line", "green", 1897, "SUN ORC PEL OKE HEX WES GRE MOS".split()),
    (3, "Airport Express", "red", 1999, "SUN LIN AIR".split()),
    (4, "Valley Line", "yellow", 1904, "SUN ORC LIN DUN KIL SLA VAL".split()),
    (5, "Cape Line", "violet", 1915, "VAL NOR CAP".split()),
    (6, "Night Loop", "blue", 2017, "SUN SUH PEL WES SUN".split()),
]
CLASSES = [
    ("D1", "Heron", "diesel", 96, 100),
    ("D2", "Bittern", "diesel", 142, 120),
    ("E1", "Swift", "electric", 210, 140),
    ("E2", "Kingfisher", "electric", 268, 160),
    ("B1", "Petrel", "battery", 124, 120),
    ("H1", "Tern", "hydrogen", 150, 140),  # ordered, none delivered
]
NAMES = ("Spirit of Sundrift", "Lady of the Cape", "Old Reliable", "Brindle Belle", "City of Westmarch", "Night Owl")
LINE_CLASSES = {1: ("E1", "E2"), 2: ("D2", "E1", "B1"), 3: ("E2",), 4: ("D1", "D2"), 5: ("D1", "B1"), 6: ("E1", "B1")}
CAUSES = [
    ("INF", "Infrastructure", None),
    ("ROL", "Rolling stock", None),
    ("EXT", "External", None),
    ("STF", "Staffing", None),
    ("SIG", "Signal failure", "INF"),
    ("TRK", "Track defect", "INF"),
    ("DOR", "Door fault", "ROL"),
    ("ENG", "Engine fault", "ROL"),
    ("WEA", "Bad weather", "EXT"),
    ("ANI", "Animals on the line", "EXT"),
    ("TRE", "Trespass", "EXT"),
    ("CRW", "Late crew", "STF"),
    ("FLD", "Flooding", "WEA"),
    ("SNO", "Snow and ice", "WEA"),
]
CAUSE_WEIGHTS = {"SIG": 9, "TRK": 4, "DOR": 7, "ENG": 5, "WEA": 3, "ANI": 2, "TRE": 2, "CRW": 8, "FLD": 2, "INF": 2}
TICKETS = [
    ("SGL", "Single", 3.5, 3),
    ("RTN", "Return", 6.25, 24),
    ("DAY", "Day Rover", 9.5, 24),
    ("WKD", "Weekend Pass", 16.0, 60),
    ("MON", "Monthly Pass", 88.0, 744),
    ("CHD", "Child Single", 1.75, 3),
    ("DOG", "Dog Ticket", 2.0, None),
]
TICKET_WEIGHTS = {"SGL": 40, "RTN": 28, "DAY": 12, "WKD": 5, "MON": 4, "CHD": 14}  # nobody has bought a Dog Ticket
FIRST, LAST = date(2024, 1, 1), date(2024, 6, 30)


def tables(draw: Draw) -> Tables:
    vehicles = _vehicles(draw)
    runs = _runs(draw, vehicles)
    return {
        "stations": list(STATIONS),
        "lines": [row[:4] for row in LINES],
        "line_stops": _stops(draw),
        "vehicle_classes": list(CLASSES),
        "vehicles": vehicles,
        "train_runs": runs,
        "delay_causes": list(CAUSES),
        "delays": _delays(draw, runs),
        "ticket_types": list(TICKETS),
        "ticket_sales": _sales(draw),
    }


def _stops(draw: Draw) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for line, _, _, _, codes in LINES:
        km = 0.0
        for number, code in enumerate(codes, start=1):
            rows.append((line, number, code, km))
            km += draw.between(14, 110) / 8
    return rows


def _vehicles(draw: Draw) -> list[tuple[Value, ...]]:
    names = draw.some(NAMES, len(NAMES))
    rows: list[tuple[Value, ...]] = []
    for code, built, count in (("D1", 1988, 9), ("D2", 1997, 11), ("E1", 2004, 12), ("E2", 2013, 8), ("B1", 2016, 6)):
        for _ in range(count):
            withdrawn = draw.day(date(2022, 1, 1), date(2023, 12, 1)) if built < 2010 and draw.chance(0.2) else None
            status = "withdrawn" if withdrawn else draw.weighted({"in service": 85, "workshop": 15})
            name = names.pop() if names and draw.chance(0.15) else None
            depot = draw.weighted({"SUN": 5, "WES": 3, "VAL": 2})
            rows.append((301 + len(rows) * 2, name, code, depot, built + draw.between(0, 7),
                         withdrawn.isoformat() if withdrawn else None, status))  # fmt: skip
    return rows


def _runs(draw: Draw, vehicles: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """Three to seven runs a day on each line; a cancelled run has no vehicle and no passengers."""
    seats = {code: seats for code, _, _, seats, _ in CLASSES}
    usable = [row for row in vehicles if row[6] != "withdrawn" and row[0] not in (311, 349, 387)]  # three in reserve
    rows: list[tuple[Value, ...]] = []
    for offset in range((LAST - FIRST).days + 1):
        day = later(FIRST, offset)
        for line, *_ in LINES:
            fit = [row for row in usable if row[2] in LINE_CLASSES[line]]
            if line == 6 and day.weekday() < 4:
                continue
            for number in range(draw.between(2, 4)):
                hour = 22 + number % 2 if line == 6 else 5 + 4 * number + draw.between(0, 3)
                status = draw.weighted({"ran": 93, "cancelled": 4, "cut short": 3})
                vehicle = draw.pick(fit)
                load = int(seats[str(vehicle[2])] * draw.bell(0.55, 0.28))
                counted = status != "cancelled" and not draw.chance(0.06)
                rows.append(
                    (700001 + len(rows), line, day.isoformat(), f"{hour:02d}:{draw.between(0, 11) * 5:02d}",
                     "out" if number % 2 == 0 else "back", None if status == "cancelled" else vehicle[0], status,
                     max(load, 3) if counted else None)
                )  # fmt: skip
    return rows


def _delays(draw: Draw, runs: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    stops = {line: len(codes) for line, _, _, _, codes in LINES}
    rows: list[tuple[Value, ...]] = []
    for run, line, _, _, _, _, status, _ in runs:
        if status == "cancelled" or not draw.chance(0.24 if line != 3 else 0.1):
            continue
        for stop in sorted(draw.some(range(2, stops[int(str(line))] + 1), draw.weighted({1: 7, 2: 3}))):
            minutes = draw.weighted({3: 20, 8: 14, 15: 6, 35: 3}) + draw.between(0, 9)
            rows.append((run, line, stop, minutes, None if draw.chance(0.12) else draw.weighted(CAUSE_WEIGHTS)))
    return rows


def _sales(draw: Draw) -> list[tuple[Value, ...]]:
    price = {code: price for code, _, price, _ in TICKETS}
    busy = {row[0]: row[3] ** 2 for row in STATIONS if row[0] not in ("SLA", "MEA")}
    rows: list[tuple[Value, ...]] = []
    for offset in range((LAST - FIRST).days + 1):
        for _ in range(draw.between(12, 24)):
            code = draw.weighted(TICKET_WEIGHTS)
            quantity = draw.weighted({1: 60, 2: 25, 4: 10, 8: 5})
            channel = draw.weighted({"machine": 45, "app": 38, "counter": 17})
            rows.append((1 + len(rows), draw.weighted(busy), code, later(FIRST, offset).isoformat(), channel, quantity,
                         quantity * price[code]))  # fmt: skip
    return rows
