CREATE TABLE films (film_id INTEGER PRIMARY KEY, title TEXT, country TEXT, year INTEGER, genre TEXT, minutes INTEGER);
CREATE TABLE venues (venue_id INTEGER PRIMARY KEY, name TEXT, district TEXT, seats INTEGER);
CREATE TABLE screenings (screening_id INTEGER PRIMARY KEY, film_id INTEGER REFERENCES films(film_id), venue_id INTEGER REFERENCES venues(venue_id), starts_at DATETIME, tickets_sold INTEGER, ticket_price REAL);
CREATE TABLE awards (award_id INTEGER PRIMARY KEY, film_id INTEGER REFERENCES films(film_id), category TEXT, outcome TEXT);
