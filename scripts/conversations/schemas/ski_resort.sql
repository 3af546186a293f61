CREATE TABLE lifts (
  lift_id INTEGER PRIMARY KEY,
  lift_name TEXT NOT NULL,
  lift_type TEXT NOT NULL,
  sector TEXT NOT NULL,
  persons_per_hour INTEGER NOT NULL,
  length_m INTEGER NOT NULL,
  built_year INTEGER,
  status TEXT NOT NULL
);
CREATE TABLE pistes (
  piste_id INTEGER PRIMARY KEY,
  piste_name TEXT NOT NULL,
  difficulty TEXT NOT NULL,
  length_m INTEGER NOT NULL,
  vertical_m INTEGER NOT NULL,
  snowmaking INTEGER NOT NULL,
  lift_id INTEGER REFERENCES lifts(lift_id)
);
CREATE TABLE passes (
  pass_id INTEGER PRIMARY KEY,
  holder TEXT NOT NULL,
  pass_type TEXT NOT NULL,
  age_group TEXT NOT NULL,
  home_country TEXT,
  sold_on TEXT NOT NULL,
  price REAL NOT NULL
);
CREATE TABLE incidents (
  incident_id INTEGER PRIMARY KEY,
  piste_id INTEGER NOT NULL REFERENCES pistes(piste_id),
  happened_on TEXT NOT NULL,
  kind TEXT NOT NULL,
  severity INTEGER NOT NULL,
  helicopter INTEGER NOT NULL,
  response_min INTEGER
);

INSERT INTO lifts VALUES (1, 'Gipfelbahn', 'gondola', 'North', 2400, 2875, 2011, 'open');
INSERT INTO lifts VALUES (2, 'Sonnalm', 'chairlift', 'South', 1800, 1340, 1998, 'open');
INSERT INTO lifts VALUES (3, 'Hochkar', 'chairlift', 'North', 2200, 1615, 2006, 'open');
INSERT INTO lifts VALUES (4, 'Zwergerl', 'magic carpet', 'Village', 900, 120, 2017, 'open');
INSERT INTO lifts VALUES (5, 'Waldlift', 'T-bar', 'Village', 720, 640, 1979, 'closed');
INSERT INTO lifts VALUES (6, 'Panorama', 'gondola', 'South', 2800, 3120, 2019, 'open');
INSERT INTO lifts VALUES (7, 'Kogel', 'T-bar', 'North', 850, 910, 1984, 'maintenance');
INSERT INTO lifts VALUES (8, 'Familienbahn', 'chairlift', 'Village', 1500, 780, 2003, 'open');
INSERT INTO lifts VALUES (9, 'Steinkar', 'chairlift', 'South', 1950, 1480, NULL, 'maintenance');
INSERT INTO lifts VALUES (10, 'Baerli', 'magic carpet', 'Village', 650, 85, 2014, 'closed');
INSERT INTO lifts VALUES (11, 'Schattberg', 'gondola', 'West', 2050, 2410, 1993, 'open');

INSERT INTO pistes VALUES (1, 'Adlerrun', 'red', 1980, 361, 0, 6);
INSERT INTO pistes VALUES (2, 'Birkenhang', 'blue', 1720, 244, 0, 6);
INSERT INTO pistes VALUES (3, 'Carving Mile', 'red', 2180, 375, 1, 7);
INSERT INTO pistes VALUES (4, 'Diretissima', 'black', 1470, 430, 1, 3);
INSERT INTO pistes VALUES (5, 'Eisbach', 'red', 1950, 356, 0, 9);
INSERT INTO pistes VALUES (6, 'Fuchsgraben', 'blue', 2010, 285, 1, 5);
INSERT INTO pistes VALUES (7, 'Gamsriegel', 'red', 1810, 395, 1, 2);
INSERT INTO pistes VALUES (8, 'Hexenkessel', 'black', 1620, 524, 0, 6);
INSERT INTO pistes VALUES (9, 'Igelwiese', 'blue', 1940, 262, 0, 5);
INSERT INTO pistes VALUES (10, 'Jaegersteig', 'red', 2470, 436, 1, 7);
INSERT INTO pistes VALUES (11, 'Kanonenrohr', 'black', 1270, 432, 1, 9);
INSERT INTO pistes VALUES (12, 'Lärchental', 'blue', 2250, 320, 1, 2);
INSERT INTO pistes VALUES (13, 'Murmel', 'blue', 1370, 227, 1, 11);
INSERT INTO pistes VALUES (14, 'Nordwand', 'black', 1300, 498, 0, NULL);
INSERT INTO pistes VALUES (15, 'Ochsenalm', 'blue', 980, 146, 1, 8);
INSERT INTO pistes VALUES (16, 'Panoramaweg', 'blue', 2120, 272, 1, 4);
INSERT INTO pistes VALUES (17, 'Rabenkopf', 'red', 1760, 323, 1, 1);
INSERT INTO pistes VALUES (18, 'Sonnenpiste', 'red', 1550, 304, 1, 3);
INSERT INTO pistes VALUES (19, 'Teufelsrinne', 'black', 1900, 596, 0, 1);
INSERT INTO pistes VALUES (20, 'Ursprung', 'red', 1460, 295, 1, 8);
INSERT INTO pistes VALUES (21, 'Vogelsang', 'blue', 1740, 223, 0, 9);
INSERT INTO pistes VALUES (22, 'Wolfsschlucht', 'red', 2090, 362, 1, 9);
INSERT INTO pistes VALUES (23, 'Zirbenwald', 'blue', 1300, 190, 1, 4);
INSERT INTO pistes VALUES (24, 'Kinderland', 'green', 260, 35, 1, 4);

INSERT INTO passes VALUES (1, 'Ugo Riva', '3-day', 'adult', 'Italy', '2023-11-17', 162);
INSERT INTO passes VALUES (2, 'Bruno Esser', 'week', 'adult', 'Germany', '2023-12-05', 305);
INSERT INTO passes VALUES (3, 'Gunnar Dahl', 'day', 'child', 'Sweden', '2023-12-07', 36.0);
INSERT INTO passes VALUES (4, 'Greta Lindt', 'week', 'adult', 'Germany', '2023-12-10', 310);
INSERT INTO passes VALUES (5, 'Zora Pavic', 'season', 'senior', NULL, '2023-12-11', 586.5);
INSERT INTO passes VALUES (6, 'Willem Bos', '3-day', 'child', 'Netherlands', '2023-12-12', 72.5);
INSERT INTO passes VALUES (7, 'Ivo Benes', 'day', 'child', 'Czechia', '2023-12-16', 29.0);
INSERT INTO passes VALUES (8, 'Nadia Conti', 'week', 'child', 'Italy', '2023-12-21', 159.0);
INSERT INTO passes VALUES (9, 'Emil Rast', 'day', 'child', 'Germany', '2023-12-22', 33.0);
INSERT INTO passes VALUES (10, 'Ben Sharp', 'day', 'adult', 'United Kingdom', '2023-12-30', 65);
INSERT INTO passes VALUES (11, 'Oskar Thal', 'week', 'youth', 'Germany', '2023-12-31', 224.0);
INSERT INTO passes VALUES (12, 'Yves Laurent', 'week', 'child', 'France', '2024-01-02', 155.0);
INSERT INTO passes VALUES (13, 'Tereza Mala', 'day', 'adult', 'Czechia', '2024-01-03', 65);
INSERT INTO passes VALUES (14, 'Alma Prinz', 'day', 'youth', 'Germany', '2024-01-14', 35.6);
INSERT INTO passes VALUES (15, 'Marek Dvorak', 'season', 'child', 'Czechia', '2024-01-17', 345.0);
INSERT INTO passes VALUES (16, 'Jakob Stein', 'day', 'child', 'Germany', '2024-01-19', 29.0);
INSERT INTO passes VALUES (17, 'Franz Moser', 'season', 'child', 'Germany', '2024-01-22', 345.0);
INSERT INTO passes VALUES (18, 'Vera Frank', '3-day', 'child', 'Austria', '2024-01-26', 81.5);
INSERT INTO passes VALUES (19, 'Xenia Roth', 'season', 'adult', 'Germany', '2024-02-02', 690);
INSERT INTO passes VALUES (20, 'Romy Adler', 'week', 'adult', 'Germany', '2024-02-02', 310);
INSERT INTO passes VALUES (21, 'Paula Reis', '3-day', 'youth', NULL, '2024-02-02', 108.5);
INSERT INTO passes VALUES (22, 'Fiona Walsh', 'season', 'adult', 'Ireland', '2024-02-05', 685);
INSERT INTO passes VALUES (23, 'Liam Byrne', 'season', 'adult', 'Ireland', '2024-02-14', 697);
INSERT INTO passes VALUES (24, 'Quirin Bauer', 'season', 'youth', 'Germany', '2024-02-17', 478.0);
INSERT INTO passes VALUES (25, 'Chiara Galli', '3-day', 'adult', 'Italy', '2024-02-22', 162);
INSERT INTO passes VALUES (26, 'Cleo Janssen', 'day', 'youth', 'Netherlands', '2024-02-25', 40.6);
INSERT INTO passes VALUES (27, 'Stefan Kuhn', 'season', 'child', 'Austria', '2024-02-28', 345.0);
INSERT INTO passes VALUES (28, 'Hugo Martin', 'week', 'senior', 'France', '2024-03-02', 263.5);
INSERT INTO passes VALUES (29, 'Isabel Novak', 'week', 'adult', 'Germany', '2024-03-02', 305);
INSERT INTO passes VALUES (30, 'Elin Berg', '3-day', 'adult', 'Sweden', '2024-03-10', 155);
INSERT INTO passes VALUES (31, 'Klara Wirth', 'day', 'child', 'Germany', '2024-03-12', 29.0);
INSERT INTO passes VALUES (32, 'Dominik Haas', 'season', 'adult', 'Germany', '2024-03-15', 697);
INSERT INTO passes VALUES (33, 'Anna Kofler', 'day', 'child', 'Austria', '2024-03-15', 36.0);
INSERT INTO passes VALUES (34, 'Hedda Ost', 'day', 'adult', 'Germany', '2024-03-26', 62);

INSERT INTO incidents VALUES (1, 12, '2023-12-04', 'fall', 2, 0, 38);
INSERT INTO incidents VALUES (2, 6, '2023-12-06', 'collision', 1, 0, 31);
INSERT INTO incidents VALUES (3, 8, '2023-12-08', 'equipment', 2, 0, 35);
INSERT INTO incidents VALUES (4, 2, '2023-12-10', 'collision', 2, 0, 9);
INSERT INTO incidents VALUES (5, 18, '2023-12-11', 'fall', 1, 0, 32);
INSERT INTO incidents VALUES (6, 17, '2023-12-12', 'fall', 1, 0, 28);
INSERT INTO incidents VALUES (7, 3, '2023-12-12', 'collision', 1, 0, 10);
INSERT INTO incidents VALUES (8, 10, '2023-12-17', 'collision', 2, 0, 14);
INSERT INTO incidents VALUES (9, 18, '2023-12-18', 'fall', 1, 0, 17);
INSERT INTO incidents VALUES (10, 2, '2023-12-20', 'collision', 2, 0, 14);
INSERT INTO incidents VALUES (11, 4, '2023-12-21', 'collision', 2, 0, NULL);
INSERT INTO incidents VALUES (12, 14, '2023-12-23', 'fall', 4, 0, 10);
INSERT INTO incidents VALUES (13, 11, '2023-12-27', 'equipment', 1, 0, 32);
INSERT INTO incidents VALUES (14, 8, '2023-12-29', 'equipment', 2, 0, 38);
INSERT INTO incidents VALUES (15, 10, '2024-01-01', 'collision', 4, 0, 24);
INSERT INTO incidents VALUES (16, 21, '2024-01-06', 'fall', 2, 0, 27);
INSERT INTO incidents VALUES (17, 22, '2024-01-14', 'fall', 3, 0, 19);
INSERT INTO incidents VALUES (18, 21, '2024-01-16', 'fall', 4, 0, 19);
INSERT INTO incidents VALUES (19, 3, '2024-01-24', 'collision', 1, 0, 9);
INSERT INTO incidents VALUES (20, 11, '2024-01-28', 'equipment', 1, 0, 33);
INSERT INTO incidents VALUES (21, 23, '2024-02-02', 'fall', 3, 1, 31);
INSERT INTO incidents VALUES (22, 6, '2024-02-04', 'lost person', 2, 0, 12);
INSERT INTO incidents VALUES (23, 5, '2024-02-04', 'fall', 1, 0, 9);
INSERT INTO incidents VALUES (24, 10, '2024-02-10', 'fall', 3, 1, 9);
INSERT INTO incidents VALUES (25, 1, '2024-02-14', 'fall', 2, 0, 14);
INSERT INTO incidents VALUES (26, 19, '2024-02-16', 'fall', 2, 0, 27);
INSERT INTO incidents VALUES (27, 3, '2024-02-16', 'fall', 3, 1, 37);
INSERT INTO incidents VALUES (28, 7, '2024-02-19', 'lost person', 2, 0, 6);
INSERT INTO incidents VALUES (29, 20, '2024-02-20', 'fall', 4, 0, 27);
INSERT INTO incidents VALUES (30, 1, '2024-02-21', 'lost person', 1, 0, 37);
INSERT INTO incidents VALUES (31, 17, '2024-02-27', 'lost person', 2, 0, 10);
INSERT INTO incidents VALUES (32, 1, '2024-03-02', 'collision', 2, 0, 9);
INSERT INTO incidents VALUES (33, 16, '2024-03-04', 'fall', 3, 0, 20);
INSERT INTO incidents VALUES (34, 19, '2024-03-04', 'fall', 2, 0, 17);
INSERT INTO incidents VALUES (35, 20, '2024-03-04', 'fall', 1, 0, 28);
INSERT INTO incidents VALUES (36, 18, '2024-03-13', 'lost person', 1, 0, 31);
INSERT INTO incidents VALUES (37, 19, '2024-03-15', 'fall', 3, 1, 36);
INSERT INTO incidents VALUES (38, 1, '2024-03-15', 'collision', 3, 1, 25);
INSERT INTO incidents VALUES (39, 11, '2024-03-15', 'fall', 1, 0, NULL);
INSERT INTO incidents VALUES (40, 5, '2024-03-20', 'lost person', 1, 0, 28);
INSERT INTO incidents VALUES (41, 14, '2024-03-26', 'collision', 1, 0, 20);
INSERT INTO incidents VALUES (42, 12, '2024-03-27', 'fall', 2, 0, 19);
INSERT INTO incidents VALUES (43, 21, '2024-03-29', 'equipment', 2, 0, 12);
INSERT INTO incidents VALUES (44, 6, '2024-03-30', 'equipment', 2, 0, 9);
INSERT INTO incidents VALUES (45, 8, '2024-03-31', 'lost person', 2, 0, 24);
INSERT INTO incidents VALUES (46, 5, '2024-04-01', 'equipment', 3, 1, NULL);

