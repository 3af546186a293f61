CREATE TABLE artists (artist_id INTEGER PRIMARY KEY, name TEXT, nationality TEXT, born_year INTEGER);
CREATE TABLE works (work_id INTEGER PRIMARY KEY, artist_id INTEGER REFERENCES artists(artist_id), title TEXT, kind TEXT, made_year INTEGER, insured_value INTEGER);
CREATE TABLE exhibitions (exhibition_id INTEGER PRIMARY KEY, title TEXT, opened_on DATE, closed_on DATE, curator TEXT);
CREATE TABLE exhibited (exhibition_id INTEGER REFERENCES exhibitions(exhibition_id), work_id INTEGER REFERENCES works(work_id), PRIMARY KEY (exhibition_id, work_id));
CREATE TABLE entries (entry_id INTEGER PRIMARY KEY, exhibition_id INTEGER REFERENCES exhibitions(exhibition_id), day DATE, visitor_kind TEXT, visitors INTEGER);
