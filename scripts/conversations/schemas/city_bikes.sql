CREATE TABLE stations (station_id INTEGER PRIMARY KEY, name TEXT, borough TEXT, docks INTEGER);
CREATE TABLE bikes (bike_id INTEGER PRIMARY KEY, model TEXT, bought_on DATE);
CREATE TABLE members (member_id INTEGER PRIMARY KEY, name TEXT, plan TEXT, birth_year INTEGER, joined_on DATE);
CREATE TABLE rides (ride_id INTEGER PRIMARY KEY, bike_id INTEGER REFERENCES bikes(bike_id), member_id INTEGER REFERENCES members(member_id), from_station INTEGER REFERENCES stations(station_id), to_station INTEGER REFERENCES stations(station_id), started_at DATETIME, minutes INTEGER);
