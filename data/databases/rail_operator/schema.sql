-- Sundrift Regional Railway: stations, lines and their stops, vehicles, train runs, delays, ticket sales.
CREATE TABLE stations (
    code TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    municipality TEXT NOT NULL,
    platforms INTEGER NOT NULL,
    step_free INTEGER NOT NULL,
    opened_on TEXT
);
CREATE TABLE lines (
    line_id INTEGER PRIMARY KEY,
    label TEXT NOT NULL,
    colour TEXT NOT NULL,
    opened_year INTEGER NOT NULL
);
CREATE TABLE line_stops (
    line_id INTEGER NOT NULL REFERENCES lines (line_id),
    stop_no INTEGER NOT NULL,
    station_code TEXT NOT NULL REFERENCES stations (code),
    km REAL NOT NULL,
    PRIMARY KEY (line_id, stop_no)
);
CREATE TABLE vehicle_classes (
    class_code TEXT PRIMARY KEY,
    label TEXT NOT NULL,
    traction TEXT NOT NULL,
    seats INTEGER NOT NULL,
    top_speed_kmh INTEGER NOT NULL
);
CREATE TABLE vehicles (
    vehicle_no INTEGER PRIMARY KEY,
    name TEXT,
    class_code TEXT NOT NULL REFERENCES vehicle_classes (class_code),
    depot_code TEXT NOT NULL REFERENCES stations (code),
    built_year INTEGER NOT NULL,
    withdrawn_on TEXT,
    status TEXT NOT NULL
);
CREATE TABLE train_runs (
    run_id INTEGER PRIMARY KEY,
    line_id INTEGER NOT NULL REFERENCES lines (line_id),
    run_date TEXT NOT NULL,
    departs_at TEXT NOT NULL,
    direction TEXT NOT NULL,
    vehicle_no INTEGER REFERENCES vehicles (vehicle_no),
    status TEXT NOT NULL,
    passengers INTEGER
);
CREATE TABLE delay_causes (
    cause_code TEXT PRIMARY KEY,
    label TEXT NOT NULL,
    parent_code TEXT REFERENCES delay_causes (cause_code)
);
CREATE TABLE delays (
    run_id INTEGER NOT NULL REFERENCES train_runs (run_id),
    line_id INTEGER NOT NULL,
    stop_no INTEGER NOT NULL,
    minutes INTEGER NOT NULL,
    cause_code TEXT REFERENCES delay_causes (cause_code),
    PRIMARY KEY (run_id, stop_no),
    FOREIGN KEY (line_id, stop_no) REFERENCES line_stops (line_id, stop_no)
);
CREATE TABLE ticket_types (
    ticket_code TEXT PRIMARY KEY,
    label TEXT NOT NULL,
    price REAL NOT NULL,
    valid_hours INTEGER
);
CREATE TABLE ticket_sales (
    sale_id INTEGER PRIMARY KEY,
    station_code TEXT NOT NULL REFERENCES stations (code),
    ticket_code TEXT NOT NULL REFERENCES ticket_types (ticket_code),
    sold_on TEXT NOT NULL,
    channel TEXT NOT NULL,
    quantity INTEGER NOT NULL,
    revenue REAL NOT NULL
);
