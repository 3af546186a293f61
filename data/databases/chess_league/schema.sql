-- Fenmark Chess League: clubs, players and their ratings, teams and squads per season, fixtures and games.
CREATE TABLE clubs (
    club_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    town TEXT NOT NULL,
    founded_year INTEGER,
    website TEXT
);
CREATE TABLE titles (
    title_code TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    minimum_rating INTEGER
);
CREATE TABLE players (
    player_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    club_id INTEGER REFERENCES clubs (club_id),
    title_code TEXT REFERENCES titles (title_code),
    birth_year INTEGER NOT NULL,
    rating INTEGER,
    mentor_id INTEGER REFERENCES players (player_id),
    registered_on TEXT NOT NULL
);
CREATE TABLE rating_history (
    player_id INTEGER NOT NULL REFERENCES players (player_id),
    listed_on TEXT NOT NULL,
    rating INTEGER NOT NULL,
    PRIMARY KEY (player_id, listed_on)
);
CREATE TABLE divisions (
    division_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    tier INTEGER NOT NULL,
    boards INTEGER NOT NULL
);
CREATE TABLE seasons (
    season TEXT PRIMARY KEY,
    starts_on TEXT NOT NULL,
    ends_on TEXT NOT NULL
);
CREATE TABLE teams (
    team_id INTEGER PRIMARY KEY,
    season TEXT NOT NULL REFERENCES seasons (season),
    division_id INTEGER NOT NULL REFERENCES divisions (division_id),
    club_id INTEGER NOT NULL REFERENCES clubs (club_id),
    name TEXT NOT NULL,
    captain_id INTEGER REFERENCES players (player_id)
);
CREATE TABLE squad_members (
    team_id INTEGER NOT NULL REFERENCES teams (team_id),
    player_id INTEGER NOT NULL REFERENCES players (player_id),
    board_order INTEGER NOT NULL,
    PRIMARY KEY (team_id, player_id)
);
CREATE TABLE fixtures (
    fixture_id INTEGER PRIMARY KEY,
    season TEXT NOT NULL REFERENCES seasons (season),
    round INTEGER NOT NULL,
    "match date" TEXT,
    home_team_id INTEGER NOT NULL REFERENCES teams (team_id),
    away_team_id INTEGER NOT NULL REFERENCES teams (team_id),
    status TEXT NOT NULL,
    home_points REAL,
    away_points REAL
);
CREATE TABLE openings (
    opening_code TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    family TEXT NOT NULL
);
CREATE TABLE games (
    fixture_id INTEGER NOT NULL REFERENCES fixtures (fixture_id),
    board_no INTEGER NOT NULL,
    white_player_id INTEGER NOT NULL REFERENCES players (player_id),
    black_player_id INTEGER NOT NULL REFERENCES players (player_id),
    result TEXT NOT NULL,
    opening_code TEXT REFERENCES openings (opening_code),
    moves INTEGER NOT NULL,
    PRIMARY KEY (fixture_id, board_no)
);
