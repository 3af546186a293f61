CREATE TABLE farms (farm_id INTEGER PRIMARY KEY, name TEXT, region TEXT, commissioned_on DATE, owner TEXT);
CREATE TABLE turbines (turbine_id INTEGER PRIMARY KEY, farm_id INTEGER REFERENCES farms(farm_id), model TEXT, capacity_kw INTEGER, status TEXT);
CREATE TABLE outputs (turbine_id INTEGER REFERENCES turbines(turbine_id), month TEXT, mwh REAL, PRIMARY KEY (turbine_id, month));
CREATE TABLE repairs (repair_id INTEGER PRIMARY KEY, turbine_id INTEGER REFERENCES turbines(turbine_id), repaired_on DATE, cause TEXT, cost_eur INTEGER);
