-- Tarn Valley Libraries: branches, patrons, titles and their copies, loans, holds, fines.
CREATE TABLE branches (
    branch_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    district TEXT NOT NULL,
    kind TEXT NOT NULL,
    parent_branch_id INTEGER REFERENCES branches (branch_id),
    opened_year INTEGER NOT NULL,
    floor_area_m2 INTEGER
);
CREATE TABLE "opening hours" (
    branch_id INTEGER NOT NULL REFERENCES branches (branch_id),
    "day of week" TEXT NOT NULL,
    opens_at TEXT NOT NULL,
    closes_at TEXT NOT NULL,
    PRIMARY KEY (branch_id, "day of week")
);
CREATE TABLE patron_types (
    type_code TEXT PRIMARY KEY,
    label TEXT NOT NULL,
    max_loans INTEGER NOT NULL,
    loan_days INTEGER NOT NULL
);
CREATE TABLE patrons (
    patron_id INTEGER PRIMARY KEY,
    full_name TEXT NOT NULL,
    type_code TEXT NOT NULL REFERENCES patron_types (type_code),
    home_branch_id INTEGER NOT NULL REFERENCES branches (branch_id),
    birth_year INTEGER,
    email TEXT,
    status TEXT NOT NULL,
    joined_on TEXT NOT NULL,
    updated_on TEXT NOT NULL,
    loans_to_date INTEGER NOT NULL
);
CREATE TABLE authors (
    author_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    country TEXT,
    birth_year INTEGER
);
CREATE TABLE titles (
    title_id INTEGER PRIMARY KEY,
    title TEXT NOT NULL,
    genre TEXT NOT NULL,
    language TEXT NOT NULL,
    audience TEXT NOT NULL,
    published_year INTEGER,
    pages INTEGER
);
CREATE TABLE title_authors (
    title_id INTEGER NOT NULL REFERENCES titles (title_id),
    author_id INTEGER NOT NULL REFERENCES authors (author_id),
    role TEXT NOT NULL,
    PRIMARY KEY (title_id, author_id, role)
);
CREATE TABLE copies (
    copy_id INTEGER PRIMARY KEY,
    title_id INTEGER NOT NULL REFERENCES titles (title_id),
    branch_id INTEGER NOT NULL REFERENCES branches (branch_id),
    status TEXT NOT NULL,
    price REAL,
    acquired_on TEXT NOT NULL
);
CREATE TABLE loans (
    loan_id INTEGER PRIMARY KEY,
    copy_id INTEGER NOT NULL REFERENCES copies (copy_id),
    patron_id INTEGER NOT NULL REFERENCES patrons (patron_id),
    loaned_on TEXT NOT NULL,
    due_on TEXT NOT NULL,
    returned_on TEXT,
    renewals INTEGER NOT NULL
);
CREATE TABLE holds (
    patron_id INTEGER NOT NULL REFERENCES patrons (patron_id),
    title_id INTEGER NOT NULL REFERENCES titles (title_id),
    placed_on TEXT NOT NULL,
    status TEXT NOT NULL,
    PRIMARY KEY (patron_id, title_id, placed_on)
);
CREATE TABLE fines (
    fine_id INTEGER PRIMARY KEY,
    loan_id INTEGER NOT NULL REFERENCES loans (loan_id),
    reason TEXT NOT NULL,
    amount REAL NOT NULL,
    issued_on TEXT NOT NULL,
    paid_on TEXT
);
