"""Northreach Weather Network: stations, observers, instruments, daily readings, monthly reports, warnings."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from .kit import Draw, Tables, Value, eighths, later
from .words import FAMILY, GIVEN

REGIONS = [
    ("CO", "Coast", 2140),
    ("LO", "Lowlands", 3875),
    ("UP", "Uplands", 2990),
    ("IS", "Outer Isles", 610),
    ("LK", "Lake District", 1320),
    ("GL", "Glacier Field", 455),  # no station yet
]
PLACES = {
    "CO": ("Gull Point", "Saltmarsh", "Port Ennis", "Lighthouse Rock", "Whinbay", "Ebbing Sands"),
    "LO": ("Barley Cross", "Mill Common", "Elmford", "Tannery Lane", "Castle Green", "Long Acre", "Fenbrook"),
    "UP": ("High Crag", "Raven Fell", "Cold Pass", "Shepherd Hut", "Granite Ridge"),
    "IS": ("Skerry North", "Skerry South", "Puffin Isle"),
    "LK": ("Mirror Lake", "Otter Bridge", "Ferry House", "Reed Bank"),
}
BASE = {
    "CO": (11.0, 6.0, 70),
    "LO": (12.5, 9.5, 15),
    "UP": (6.5, 10.0, 480),
    "IS": (9.5, 4.5, 20),
    "LK": (11.0, 8.0, 160),
}
RAIN = {"CO": 0.48, "LO": 0.38, "UP": 0.58, "IS": 0.55, "LK": 0.5}
GUST = {"CO": 42, "LO": 27, "UP": 46, "IS": 55, "LK": 28}
MONTH_SHIFT = (-1.0, -0.95, -0.55, -0.1, 0.4, 0.8, 1.0, 0.95, 0.5, 0.05, -0.5, -0.9)
KINDS = {"thermometer": 1.0, "rain gauge": 1.0, "anemometer": 0.7, "barometer": 0.5, "snow sensor": 0.2}
MODELS = {
    "thermometer": ("Boreal T2", "Boreal T3", "Quill 100"), "rain gauge": ("Pluvio S", "Dropwise 4"),
    "anemometer": ("Zephyr 9", "Cupstar"), "barometer": ("Baro One",), "snow sensor": ("Snowline X",),
}  # fmt: skip
FLAGS = [("V", "verified"), ("P", "provisional"), ("E", "estimated"), ("S", "suspect"), ("M", "missing instrument")]
FIRST, LAST = date(2023, 1, 1), date(2023, 12, 31)


def tables(draw: Draw) -> Tables:
    stations = _stations(draw)
    readings = _readings(draw, stations)
    observers, posts = _observers(draw, stations)
    return {
        "regions": list(REGIONS),
        "stations": stations,
        "observers": observers,
        "station_observers": posts,
        "instruments": _instruments(draw, stations),
        "quality_flags": list(FLAGS),
        "daily_readings": readings,
        "monthly_reports": _reports(draw, readings),
        "warnings": _warnings(draw),
    }


def _stations(draw: Draw) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for region, names in PLACES.items():
        for name in names:
            kind = draw.weighted({"automatic": 6, "manual": 4})
            opened = draw.day(date(1951, 1, 1), date(2018, 12, 31))
            height = max(2, BASE[region][2] + draw.between(-40, 260 if region == "UP" else 60))
            rows.append((101 + len(rows), name, region, kind, height, None, opened.isoformat(), None))
    closed = {103: "2023-08-31", 110: "2023-05-15", 117: "2022-10-01"}  # 117 closed before the first reading
    rows = [(*row[:7], closed.get(int(str(row[0])))) for row in rows]
    for old, name in ((103, "Port Ennis Airfield"), (117, "Shepherd Hut Upper")):
        source = next(row for row in rows if row[0] == old)
        rows.append(
            (101 + len(rows), name, source[2], "automatic", int(str(source[4])) + 12, old, str(source[7]), None)
        )
    rows.append((101 + len(rows), "Wether Moor", "UP", "automatic", 512, None, "2024-01-15", None))  # no reading yet
    return rows


def _readings(draw: Draw, stations: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """One row per open station and day; single values can be missing; the weather itself is shared by a region."""
    skies: dict[tuple[str, date], tuple[float, bool, float]] = {}
    for region in BASE:
        drift, wet = 0.0, False
        for offset in range(365):
            day = later(FIRST, offset)
            drift = drift * 0.7 + draw.bell(0, 1.9)
            wet = draw.chance(RAIN[region] + (0.2 if wet else -0.15))
            skies[region, day] = (drift, wet, draw.bell(0, 11))
    rows: list[tuple[Value, ...]] = []
    for station, _, region, kind, height, _, opened, closed in stations:
        mean, swing, _ = BASE[str(region)]
        for offset in range(365):
            day = later(FIRST, offset)
            if day.isoformat() < str(opened) or (closed and day.isoformat() > str(closed)) or draw.chance(0.012):
                continue
            drift, wet, wind = skies[str(region), day]
            middle = mean + swing * MONTH_SHIFT[day.month - 1] + drift - int(str(height)) / 200
            high = eighths(middle + abs(draw.bell(4.0, 1.5)), 0.5)
            low = eighths(middle - abs(draw.bell(4.0, 1.5)) - 0.5, 0.5)
            rain = eighths(abs(draw.bell(0, 7)), 0.5) if wet else 0.0
            gust = max(4, int(GUST[str(region)] + wind + draw.bell(0, 9)))
            flag = draw.weighted({"V": 86, "P": 6, "E": 5, "S": 3})
            rows.append(
                (station, day.isoformat(), None if draw.chance(0.015) else high, None if draw.chance(0.015) else low,
                 None if draw.chance(0.02) else rain, None if kind == "manual" or draw.chance(0.03) else gust, flag)
            )  # fmt: skip
    return rows


def _observers(
    draw: Draw, stations: list[tuple[Value, ...]]
) -> tuple[list[tuple[Value, ...]], list[tuple[Value, ...]]]:
    taken: set[str] = set()
    people: list[tuple[Value, ...]] = []
    for number in range(1, 41):
        name = draw.name(GIVEN, FAMILY, taken)
        email = f"{name.lower().replace(' ', '.')}@northreach.example" if draw.chance(0.75) else None
        trained = draw.day(date(2005, 1, 1), date(2023, 3, 1)).isoformat() if draw.chance(0.8) else None
        people.append((number, name, email, trained))
    posts: list[tuple[Value, ...]] = []
    for row in stations:
        for person in sorted(draw.some(range(1, 37), draw.weighted({0: 3, 1: 4, 2: 5, 3: 3}))):
            since = draw.day(date(2008, 1, 1), date(2022, 12, 31))
            until = later(since, draw.between(200, 2500)) if draw.chance(0.3) else None
            posts.append((row[0], person, since.isoformat(), until.isoformat() if until and until <= LAST else None))
    return people, posts


def _instruments(draw: Draw, stations: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for station in stations[:-1]:
        found = [kind for kind, share in KINDS.items() if draw.chance(share)]
        for kind in found + [kind for kind in found if draw.chance(0.15)]:  # some stations have two of a kind
            first = max(date.fromisoformat(str(station[6])), date(2009, 1, 1))
            installed = draw.day(first, date(2023, 9, 1))
            checked = draw.day(installed, LAST).isoformat() if draw.chance(0.72) else None
            status = draw.weighted({"working": 84, "faulty": 9, "removed": 7})
            serial = f"{kind[0].upper()}{draw.between(10000, 99999)}"
            rows.append((5001 + len(rows), station[0], kind, draw.pick(MODELS[kind]), serial, installed.isoformat(),
                         checked, status))  # fmt: skip
    return rows


def _reports(draw: Draw, readings: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    totals: dict[tuple[Value, str], tuple[float, int]] = {}
    for station, day, _, _, rain, *_ in readings:
        key = (station, str(day)[:7])
        total, days = totals.get(key, (0.0, 0))
        totals[key] = (total + float(str(rain or 0)), days + 1)
    states = {"published": 80, "draft": 20}
    return [
        (station, month, total, days, draw.weighted(states) if month > "2023-09" else "published")
        for (station, month), (total, days) in totals.items()
    ]


def _warnings(draw: Draw) -> list[tuple[Value, ...]]:
    hazards = {"CO": ("wind", "flood", "fog"), "LO": ("flood", "heat", "fog"), "UP": ("snow", "ice", "wind"),
               "IS": ("wind", "storm surge"), "LK": ("flood", "ice")}  # fmt: skip
    found: list[tuple[datetime, str]] = []
    for region, count in (("CO", 34), ("LO", 17), ("UP", 41), ("IS", 29), ("LK", 11)):
        for _ in range(count):
            minutes = draw.between(0, 364 * 24 * 4) * 15
            found.append((datetime(2023, 1, 1) + timedelta(minutes=minutes), region))
    rows: list[tuple[Value, ...]] = []
    for issued, region in sorted(found):
        level = draw.weighted({"yellow": 60, "orange": 30, "red": 8})
        lifted = issued + timedelta(minutes=15 * draw.between(8, 220))
        known = lifted < datetime(2023, 12, 31) and not draw.chance(0.05)
        rows.append((1 + len(rows), region, draw.pick(hazards[region]), level, f"{issued:%Y-%m-%d %H:%M}",
                     f"{lifted:%Y-%m-%d %H:%M}" if known else None))  # fmt: skip
    return rows
