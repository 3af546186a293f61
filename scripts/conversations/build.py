"""Write the three sets of conversations as a benchmark in the uniform layout: databases and their dialogues.

    python scripts/conversations/build.py runs/conversations
    NL2SQL_BENCHMARKS=runs nl2sql eval --benchmark conversations --split fragments ...

Each set is one split: ``fragments`` (terse), ``polite`` (whole sentences) and ``corrections`` (corrections, pronouns,
shifts of time). Its text file has one block per dialogue: ``?`` opens it, ``>`` follows on, ``!`` stands alone inside
the dialogue; ``=`` is the gold SQL of the line above, and a further ``=`` another accepted one.

A database is one file of ``schemas``. Its rows are drawn by the function of its name below, from a fixed seed; where
there is none, they stand in the file.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SETS = ("fragments", "polite", "corrections", "mixed")
KINDS = {"?": "first", ">": "follow_up", "!": "independent"}
Rows = list[tuple[Any, ...]]


def main() -> None:
    folder = Path(sys.argv[1])
    for schema in sorted((HERE / "schemas").glob("*.sql")):
        _database(folder / "databases" / schema.stem / f"{schema.stem}.sqlite", schema)
    questions = [question for name in SETS for question in _questions(name)]
    (folder / "questions.json").write_text(json.dumps(questions, indent=1), encoding="utf-8")


def _questions(split: str) -> list[dict[str, Any]]:
    """The turns of one set, in order. Of a follow-up nobody wrote a whole text: it is the dialogue so far."""
    told: list[dict[str, Any]] = []
    db_id, dialogue, said = "", 0, ""
    for line in (HERE / f"{split}.txt").read_text(encoding="utf-8").splitlines():
        mark, _, text = line.partition(" ")
        if mark == "#":
            db_id = text
        elif mark == "=":
            told[-1].update(
                {"alt_queries": [*told[-1].get("alt_queries", []), text]} if "query" in told[-1] else {"query": text}
            )
        elif mark in KINDS:
            first = mark == "?"
            dialogue, turn = (dialogue + 1, 1) if first else (dialogue, told[-1]["turn"] + 1)
            said = f"{said} {text}" if mark == ">" else text
            place = {"interaction_id": f"{split}-{dialogue:02d}", "turn": turn, "id": f"{split}-{dialogue:02d}.{turn}"}
            told.append(
                {**place, "question": text, "db_id": db_id, "split": split, "kind": KINDS[mark], "standalone": said}
            )
    return told


def _database(path: Path, schema: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(schema.read_text(encoding="utf-8"))
    drawn = globals().get(schema.stem, lambda draw: {})(random.Random(schema.stem))
    for table, rows in drawn.items():
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    connection.commit()
    connection.close()


def _day(draw: random.Random, first: str, last: str) -> str:
    start = date.fromisoformat(first)
    return str(start + timedelta(days=draw.randrange((date.fromisoformat(last) - start).days + 1)))


def _people(draw: random.Random, number: int) -> list[str]:
    first = (
        "Ada Bruno Chiara Dev Elif Femi Greta Hugo Ines Jonas Kaya Lars Mina Noor Otis Pia Rosa Sven Tara Uma".split()  # noqa: SIM905
    )
    last = "Abara Bell Costa Dahl Eriksen Fox Garcia Holt Ivanov Jung Klein Lund Moreau Novak Olsen Petit".split()  # noqa: SIM905
    return draw.sample([f"{one} {two}" for one in first for two in last], number)


def vet_clinic(draw: random.Random) -> dict[str, Rows]:
    breeds = {
        "dog": ["Beagle", "Poodle", "Collie"],
        "cat": ["Siamese", "Persian"],
        "rabbit": ["Lop"],
        "parrot": ["Macaw"],
    }
    cities = ["Leeds", "York", "Hull", "Ripon"]
    owners = [
        (n, name, draw.choice(cities), _day(draw, "2019-01-01", "2024-06-30"))
        for n, name in enumerate(_people(draw, 60), 1)
    ]
    pets: Rows = []
    names = "Biscuit Coco Daisy Felix Ginger Hazel Juno Kiwi Luna Milo Nala Oreo Pepper Rex Smokey Willow".split()  # noqa: SIM905
    for n in range(1, 101):
        kind = draw.choices(list(breeds), [5, 4, 2, 1])[0]
        born, weight = _day(draw, "2010-01-01", "2023-12-31"), round(draw.uniform(0.4, 38), 1)
        pets.append((n, draw.randint(1, 55), draw.choice(names), kind, draw.choice(breeds[kind]), born, weight))
    special = ["surgery", "dentistry", "general practice", "dermatology"]
    vets = [
        (n, name, special[n % 4], _day(draw, "2012-01-01", "2022-12-31")) for n, name in enumerate(_people(draw, 9), 1)
    ]
    reasons = ["vaccination", "check-up", "injury", "dental", "skin"]
    visits = [
        (n, draw.randint(1, 95), draw.randint(1, 9), _day(draw, "2023-01-01", "2024-12-31"), draw.choice(reasons),
         round(draw.uniform(20, 400), 2), draw.choices(["completed", "cancelled", "no_show"], [8, 2, 1])[0])
        for n in range(1, 501)
    ]  # fmt: skip
    return {"owners": owners, "pets": pets, "vets": vets, "visits": visits}


def coffee_roaster(draw: random.Random) -> dict[str, Rows]:
    countries = ["Austria", "Belgium", "Denmark", "Portugal", "Spain"]
    words = [
        "Anchor",
        "Birch",
        "Cobalt",
        "Drift",
        "Ember",
        "Fable",
        "Grove",
        "Harbour",
        "Iris",
        "Juniper",
        "Kestrel",
        "Lantern",
    ]
    cafes = [
        (n, f"{draw.choice(words)} {n}", draw.choice(countries), _day(draw, "2015-01-01", "2023-12-31"))
        for n in range(1, 41)
    ]
    origins = ["Ethiopia", "Brazil", "Colombia", "Kenya", "Guatemala"]
    beans = [
        (
            n,
            f"{origins[n % 5]} No. {n}",
            origins[n % 5],
            draw.choice(["light", "medium", "dark"]),
            round(draw.uniform(12, 48), 2),
        )
        for n in range(1, 25)
    ]
    orders = [
        (n, draw.randint(1, 38), _day(draw, "2022-01-01", "2024-12-31"), draw.choice(["web", "phone", "fair"]),
         draw.choices(["shipped", "open", "returned"], [7, 2, 1])[0])
        for n in range(1, 401)
    ]  # fmt: skip
    items = [
        (n, bean, draw.randint(1, 40)) for n in range(1, 401) for bean in draw.sample(range(1, 23), draw.randint(1, 4))
    ]
    return {"cafes": cafes, "beans": beans, "orders": orders, "order_items": items}


def film_festival(draw: random.Random) -> dict[str, Rows]:
    nouns = "River Winter Orchard Signal Glass Thunder Lantern Harbor Silence Mirror Comet Garden".split()  # noqa: SIM905
    pairs = draw.sample([f"{a} {b}" for a in ("The", "Blue", "Last", "Open", "Seventh") for b in nouns], 50)
    countries = ["France", "Japan", "Brazil", "Iran", "Canada", "Poland"]
    genres = ["drama", "documentary", "comedy", "thriller", "animation"]
    films = [
        (n, title, draw.choice(countries), draw.randint(2021, 2024), draw.choice(genres), draw.randint(62, 190))
        for n, title in enumerate(pairs, 1)
    ]
    venues = [
        (n, name, district, draw.randint(80, 620))
        for n, (name, district) in enumerate(
            [
                ("Apollo", "Old Town"),
                ("Lumen", "Old Town"),
                ("Odeon", "Harbour"),
                ("Rex", "Harbour"),
                ("Studio 5", "University"),
                ("Atrium", "Hillside"),
            ],
            1,
        )
    ]
    screenings = [
        (n, draw.randint(1, 46), draw.randint(1, 6),
         f"{_day(draw, '2024-09-05', '2024-09-22')} {draw.choice(['11:00', '15:30', '18:00', '20:45'])}:00",
         draw.randint(5, 400), draw.choice([8.0, 11.5, 14.0]))
        for n in range(1, 181)
    ]  # fmt: skip
    prizes = ["Best Film", "Best Director", "Best Actor", "Audience Prize", "Best Script"]
    awards = [(n, draw.randint(1, 46), prizes[n % 5], draw.choice(["won", "nominated"])) for n in range(1, 41)]
    return {"films": films, "venues": venues, "screenings": screenings, "awards": awards}


def city_bikes(draw: random.Random) -> dict[str, Rows]:
    boroughs = ["North", "Centre", "Riverside", "West"]
    stations = [
        (
            n,
            f"{draw.choice(['Elm', 'Oak', 'Mill', 'King', 'Lake'])} Street {n}",
            draw.choice(boroughs),
            draw.randint(8, 40),
        )
        for n in range(1, 26)
    ]
    bikes = [
        (n, draw.choice(["classic", "electric", "cargo"]), _day(draw, "2019-03-01", "2023-11-30")) for n in range(1, 81)
    ]
    members = [
        (
            n,
            name,
            draw.choice(["monthly", "yearly", "student"]),
            draw.randint(1955, 2006),
            _day(draw, "2020-01-01", "2024-06-30"),
        )
        for n, name in enumerate(_people(draw, 90), 1)
    ]
    rides = [
        (n, draw.randint(1, 76), draw.randint(1, 84), draw.randint(1, 24), draw.randint(1, 24),
         f"{_day(draw, '2023-01-01', '2024-12-31')} {draw.randint(6, 22):02d}:{draw.randint(0, 59):02d}:00",
         draw.randint(3, 95))
        for n in range(1, 701)
    ]  # fmt: skip
    return {"stations": stations, "bikes": bikes, "members": members, "rides": rides}


def wind_energy(draw: random.Random) -> dict[str, Rows]:
    names = ["Aska", "Brekke", "Corran", "Dunmore", "Eskdale", "Fjell", "Glenury", "Holm"]
    regions, owners = ["Highlands", "Coast", "Lowlands"], ["Nordvind", "Aeolus", "Breeze Co"]
    farms = [
        (n, name, draw.choice(regions), _day(draw, "2008-01-01", "2021-12-31"), draw.choice(owners))
        for n, name in enumerate(names, 1)
    ]
    turbines = [
        (n, draw.randint(1, 8), draw.choice(["V90", "V112", "E82", "SG145"]), draw.choice([2000, 2300, 3000, 4500]),
         draw.choices(["running", "stopped", "retired"], [7, 2, 1])[0])
        for n in range(1, 61)
    ]  # fmt: skip
    outputs = [
        (turbine, f"{year}-{month:02d}", round(draw.uniform(150, 1300), 1))
        for turbine in range(1, 61) for year in (2022, 2023, 2024) for month in range(1, 13)
    ]  # fmt: skip
    causes = ["gearbox", "blade", "generator", "sensor", "lightning"]
    repairs = [
        (n, draw.randint(1, 56), _day(draw, "2022-01-01", "2024-12-31"), draw.choice(causes), draw.randint(400, 60000))
        for n in range(1, 221)
    ]
    return {"farms": farms, "turbines": turbines, "outputs": outputs, "repairs": repairs}


def art_museum(draw: random.Random) -> dict[str, Rows]:
    nations = ["Dutch", "Italian", "Mexican", "Nigerian", "Japanese"]
    artists = [(n, name, draw.choice(nations), draw.randint(1580, 1985)) for n, name in enumerate(_people(draw, 40), 1)]
    kinds = ["painting", "sculpture", "print", "photograph"]
    works = [
        (n, draw.randint(1, 36), f"{draw.choice(['Study', 'Portrait', 'Harvest', 'Night', 'Interior'])} {n}",
         draw.choice(kinds),
         draw.randint(1610, 2015), draw.randint(2, 900) * 1000)
        for n in range(1, 161)
    ]  # fmt: skip
    curators = _people(draw, 5)
    shows: Rows = []
    for n, title in enumerate(
        [
            "Light",
            "Iron Age",
            "Paper Worlds",
            "Faces",
            "Two Rivers",
            "Still",
            "Colour Field",
            "New Voices",
            "Maps",
            "Water",
        ],
        1,
    ):
        opened = date.fromisoformat(_day(draw, "2022-01-15", "2024-08-30"))
        shows.append(
            (n, title, str(opened), str(opened + timedelta(days=draw.randint(40, 120))), draw.choice(curators))
        )
    shown = [(show, work) for show in range(1, 11) for work in sorted(draw.sample(range(1, 151), draw.randint(8, 22)))]
    entries = [
        (len(shows) * day + show, show, str(date.fromisoformat(shows[show - 1][2]) + timedelta(days=day)),
         draw.choices(["adult", "child", "senior"], [6, 2, 2])[0], draw.randint(10, 300))
        for day in range(30) for show in range(1, 11)
    ]  # fmt: skip
    return {"artists": artists, "works": works, "exhibitions": shows, "exhibited": shown, "entries": entries}


if __name__ == "__main__":
    main()
