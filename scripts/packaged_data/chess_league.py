"""Fenmark Chess League: clubs, players and their ratings, teams and squads per season, fixtures and games."""

from __future__ import annotations

from datetime import date

from .kit import Draw, Tables, Value, later
from .words import FAMILY, GIVEN

CLUBS = [
    (1, "Fenmark Knights", "Fenmark", 1923, "knights.fenmark.example"),
    (2, "Old Mill Chess Circle", "Fenmark", 1951, None),
    (3, "Rook's Nest", "Aldbury", 1987, "rooksnest.example"),
    (4, "Stonebridge Pawns", "Stonebridge", 1934, "stonebridgepawns.example"),
    (5, "Quayside Chess Club", "Portlow", 1946, None),
    (6, "Castle Hill", "Aldbury", None, None),
    (7, "University Bishops", "Wenford", 1968, "bishops.wenford.example"),
    (8, "Wenford Wanderers", "Wenford", 2005, "wanderers.example"),
    (9, "Harrowgate Endgames", "Harrowgate", 1999, None),
    (10, "Saltley Gambit", "Saltley", 2012, "gambit.saltley.example"),
    (11, "Moorland Juniors", "Harrowgate", 2019, None),
    (12, "Portlow Veterans", "Portlow", 1978, None),  # players, but never a team
]
TITLES = [("LC", "League Candidate", 1900), ("LM", "League Master", 2100), ("SM", "Senior Master", 2250),
          ("AR", "Arbiter", None), ("GM", "Grand League Master", 2400)]  # fmt: skip
DIVISIONS = [(1, "Premier", 1, 6), (2, "Intermediate", 2, 5), (3, "Open", 3, 4)]
SEASONS = [("2021/22", date(2021, 9, 13)), ("2022/23", date(2022, 9, 12)), ("2023/24", date(2023, 9, 11))]
OPENINGS = [
    ("A1", "English Opening", "Flank"),
    ("A4", "Dutch Defence", "Semi-closed"),
    ("B1", "Caro-Kann", "Semi-open"),
    ("B2", "Sicilian Defence", "Semi-open"),
    ("B7", "Sicilian Dragon", "Semi-open"),
    ("C1", "French Defence", "Semi-open"),
    ("C5", "Italian Game", "Open"),
    ("C6", "Ruy Lopez", "Open"),
    ("D0", "London System", "Closed"),
    ("D3", "Queen's Gambit Declined", "Closed"),
    ("E6", "King's Indian", "Semi-closed"),
    ("A0", "Bird's Opening", "Flank"),
    ("C3", "King's Gambit", "Open"),  # nobody plays it
]
PLAYED = {"A1": 7, "A4": 3, "B1": 8, "B2": 12, "B7": 5, "C1": 8, "C5": 10, "C6": 9, "D0": 12, "D3": 9, "E6": 5, "A0": 1}
STRENGTH = {
    1: 1920,
    2: 1780,
    3: 1820,
    4: 1700,
    5: 1740,
    6: 1650,
    7: 1860,
    8: 1600,
    9: 1560,
    10: 1660,
    11: 1320,
    12: 1590,
}


def tables(draw: Draw) -> Tables:
    history: list[tuple[Value, ...]] = []
    players = _players(draw, history)
    teams, squads = _teams(draw, players)
    fixtures, games = _fixtures(draw, teams, squads, {row[0]: int(str(row[5] or 1450)) for row in players})
    return {
        "clubs": list(CLUBS),
        "titles": list(TITLES),
        "players": players,
        "rating_history": history,
        "divisions": list(DIVISIONS),
        "seasons": [(name, first.isoformat(), later(first, 250).isoformat()) for name, first in SEASONS],
        "teams": teams,
        "squad_members": squads,
        "fixtures": fixtures,
        "openings": list(OPENINGS),
        "games": games,
    }


def _players(draw: Draw, history: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """Rated players have a history that ends with their rating; a mentor is an older player of the same club."""
    taken: set[str] = set()
    rows: list[tuple[Value, ...]] = []
    for number in range(1, 231):
        club = draw.weighted(dict(zip(range(1, 13), (14, 10, 10, 9, 9, 6, 10, 7, 7, 6, 7, 4), strict=True)))
        rating = int(max(1000, draw.bell(STRENGTH[club], 210)))
        title = next((code for code, _, low in reversed(TITLES[:3]) if low and rating >= low), None)
        title = title if title and draw.chance(0.8) else "AR" if draw.chance(0.04) else None
        born = draw.between(2007, 2013) if club == 11 else draw.between(1944, 2008)
        registered = draw.day(date(max(2012, born + 8), 1, 1), date(2023, 10, 1)) if born < 2013 else date(2023, 9, 1)
        older = [row for row in rows if row[2] == club and int(str(row[4])) < born - 6]
        mentor = draw.pick(older)[0] if older and draw.chance(0.4) else None
        rated = not draw.chance(0.08)
        if rated:
            years = range(max(2019, registered.year + 1), 2025)
            steps = [draw.between(-35, 60) for _ in years[1:]]
            for position, year in enumerate(years):
                history.append((number, f"{year}-01-01", rating - sum(steps[position:])))
        name = draw.name(GIVEN, FAMILY, taken)
        member_of = None if draw.chance(0.05) else club
        rows.append((number, name, member_of, title if rated else None, born, rating if rated else None, mentor,
                     registered.isoformat()))  # fmt: skip
    return rows


def _teams(draw: Draw, players: list[tuple[Value, ...]]) -> tuple[list[tuple[Value, ...]], list[tuple[Value, ...]]]:
    """A club enters one team, large clubs a second one in a lower division."""
    teams: list[tuple[Value, ...]] = []
    squads: list[tuple[Value, ...]] = []
    for season, first in SEASONS:
        for club, name, *_ in CLUBS[:11]:
            if club == 10 and season == SEASONS[0][0]:  # joined the league a season later
                continue
            ready = [row for row in players if row[2] == club and str(row[7]) < first.isoformat()]
            ready.sort(key=lambda row: -int(str(row[5] or 1000)))
            level = 1 if club in (1, 2, 3, 5, 7) else 2 if club in (4, 6) or (club, season) == (10, "2023/24") else 3
            for number, division in enumerate((level, 3) if len(ready) >= 16 and level < 3 else (level,)):
                squad = ready[number * 8 : number * 8 + 8]
                if len(squad) < DIVISIONS[division - 1][3]:
                    continue
                team = 1 + len(teams)
                captain = draw.pick(squad)[0] if draw.chance(0.85) else None
                teams.append((team, season, division, club, name if number == 0 else f"{name} B", captain))
                squads += [(team, row[0], place) for place, row in enumerate(squad, start=1)]
    return teams, squads


def _fixtures(
    draw: Draw, teams: list[tuple[Value, ...]], squads: list[tuple[Value, ...]], rating: dict[Value, int]
) -> tuple[list[tuple[Value, ...]], list[tuple[Value, ...]]]:
    members: dict[Value, list[Value]] = {}
    for team, player, _ in squads:
        members.setdefault(team, []).append(player)
    fixtures: list[tuple[Value, ...]] = []
    games: list[tuple[Value, ...]] = []
    for season, first in SEASONS:
        for division, _, _, boards in DIVISIONS:
            group = [row[0] for row in teams if row[1] == season and row[2] == division]
            for turn, home, away in _double_round(group):
                number = 2001 + len(fixtures)
                status = draw.weighted({"played": 93, "postponed": 3, "walkover": 4})
                day = later(first, 14 * turn - 10 + draw.between(0, 4))
                score: tuple[float | None, float | None] = (None, None)
                if status == "walkover":
                    score = draw.pick(((float(boards), 0.0), (0.0, float(boards))))
                if status == "played":
                    score = (0.0, 0.0)
                    sides = (_lineup(draw, members[home], boards), _lineup(draw, members[away], boards))
                    for board, pair in enumerate(zip(*sides, strict=True), start=1):
                        points = _play(draw, games, number, board, pair, rating)
                        score = (score[0] + points, score[1] + 1 - points)
                fixtures.append((number, season, turn, None if status == "postponed" else day.isoformat(), home, away,
                                 status, *score))  # fmt: skip
    return fixtures, games


def _double_round(group: list[Value]) -> list[tuple[int, Value, Value]]:
    """(round, home, away): everybody meets everybody at home and away, by the circle method."""
    ring: list[Value] = [*group, *([None] if len(group) % 2 else [])]
    rounds = len(ring) - 1
    found: list[tuple[int, Value, Value]] = []
    for turn in range(rounds):
        for one, two in zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True):
            if one is not None and two is not None:
                home, away = (one, two) if turn % 2 else (two, one)
                found += [(turn + 1, home, away), (turn + 1 + rounds, away, home)]
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return sorted(found, key=lambda match: match[0])


def _lineup(draw: Draw, squad: list[Value], boards: int) -> list[Value]:
    """``boards`` players in squad order: the regulars, with a substitute now and then."""
    present = [player for player in squad if not draw.chance(0.15)]
    return (present if len(present) >= boards else squad)[:boards]


def _play(
    draw: Draw,
    games: list[tuple[Value, ...]],
    fixture: int,
    board: int,
    pair: tuple[Value, ...],
    rating: dict[Value, int],
) -> float:
    """Add one game and return the home player's points; the home side has White on even boards."""
    expected = 0.5 + max(-0.4, min(0.4, (rating[pair[0]] - rating[pair[1]]) / 900))
    points = draw.weighted({1.0: expected * 0.75, 0.5: 0.25, 0.0: (1 - expected) * 0.75})
    white, black = (pair[0], pair[1]) if board % 2 == 0 else (pair[1], pair[0])
    for_white = points if board % 2 == 0 else 1 - points
    result = {1.0: "1-0", 0.5: "1/2-1/2", 0.0: "0-1"}[for_white]
    opening = None if draw.chance(0.06) else draw.weighted(PLAYED)
    moves = int(max(9, draw.bell(39, 17)))
    games.append((fixture, board, white, black, result, opening, moves))
    return points
