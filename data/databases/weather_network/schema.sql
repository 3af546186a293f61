-- Northreach Weather Network: stations, volunteer observers, instruments, daily readings, monthly reports, warnings.
CREATE TABLE regions (
    region_code TEXT PRIMARY KEY,
    label TEXT NOT NULL,
    area_km2 INTEGER NOT NULL
);
CREATE TABLE stations (
    station_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    region_code TEXT NOT NULL REFERENCES regions (region_code),
    kind TEXT NOT NULL,
    elevation_m INTEGER NOT NULL,
    replaces_id INTEGER REFERENCES stations (station_id),
    opened_on TEXT NOT NULL,
    closed_on TEXT
);
CREATE TABLE observers (
    observer_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    email TEXT,
    trained_on TEXT
);
CREATE TABLE station_observers (
    station_id INTEGER NOT NULL REFERENCES stations (station_id),
    observer_id INTEGER NOT NULL REFERENCES observers (observer_id),
    since TEXT NOT NULL,
    until TEXT,
    PRIMARY KEY (station_id, observer_id)
);
CREATE TABLE instruments (
    instrument_id INTEGER PRIMARY KEY,
    station_id INTEGER NOT NULL REFERENCES stations (station_id),
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    "serial number" TEXT NOT NULL,
    installed_on TEXT NOT NULL,
    last_calibrated_on TEXT,
    status TEXT NOT NULL
);
CREATE TABLE quality_flags (
    flag TEXT PRIMARY KEY,
    meaning TEXT NOT NULL
);
CREATE TABLE daily_readings (
    station_id INTEGER NOT NULL REFERENCES stations (station_id),
    reading_date TEXT NOT NULL,
    temp_max REAL,
    temp_min REAL,
    rain_mm REAL,
    gust_kmh INTEGER,
    flag TEXT NOT NULL REFERENCES quality_flags (flag),
    PRIMARY KEY (station_id, reading_date)
);
CREATE TABLE monthly_reports (
    station_id INTEGER NOT NULL REFERENCES stations (station_id),
    month TEXT NOT NULL,
    rain_total_mm REAL NOT NULL,
    days_reported INTEGER NOT NULL,
    status TEXT NOT NULL,
    PRIMARY KEY (station_id, month)
);
CREATE TABLE warnings (
    warning_id INTEGER PRIMARY KEY,
    region_code TEXT NOT NULL REFERENCES regions (region_code),
    hazard TEXT NOT NULL,
    level TEXT NOT NULL,
    issued_at TEXT NOT NULL,
    lifted_at TEXT
);
