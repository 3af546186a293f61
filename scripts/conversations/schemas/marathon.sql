CREATE TABLE races (
  race_id INTEGER PRIMARY KEY,
  race_name TEXT NOT NULL,
  city TEXT NOT NULL,
  race_date TEXT NOT NULL,
  distance_km REAL NOT NULL,
  surface TEXT NOT NULL,
  entry_fee REAL
);
CREATE TABLE runners (
  runner_id INTEGER PRIMARY KEY,
  runner_name TEXT NOT NULL,
  gender TEXT NOT NULL,
  birth_year INTEGER NOT NULL,
  club TEXT,
  nationality TEXT NOT NULL
);
CREATE TABLE results (
  result_id INTEGER PRIMARY KEY,
  race_id INTEGER NOT NULL REFERENCES races(race_id),
  runner_id INTEGER NOT NULL REFERENCES runners(runner_id),
  bib INTEGER NOT NULL,
  status TEXT NOT NULL,
  finish_min REAL
);
CREATE TABLE sponsors (
  sponsor_id INTEGER PRIMARY KEY,
  sponsor_name TEXT NOT NULL,
  industry TEXT NOT NULL,
  race_id INTEGER NOT NULL REFERENCES races(race_id),
  amount INTEGER NOT NULL,
  signed_on TEXT NOT NULL
);

INSERT INTO races VALUES (1, 'Harbour Marathon', 'Lindhaven', '2023-04-16', 42.2, 'road', 85.0);
INSERT INTO races VALUES (2, 'Ridge Trail Run', 'Obermoos', '2023-06-03', 28.0, 'trail', 55.0);
INSERT INTO races VALUES (3, 'Night Ten', 'Lindhaven', '2023-08-26', 10.0, 'road', 25.0);
INSERT INTO races VALUES (4, 'Vineyard Half', 'Castelro', '2023-09-24', 21.1, 'gravel', 48.0);
INSERT INTO races VALUES (5, 'Old Bridge Half', 'Prestin', '2023-10-15', 21.1, 'road', 52.0);
INSERT INTO races VALUES (6, 'Frost Trail', 'Obermoos', '2024-01-20', 15.0, 'trail', 30.0);
INSERT INTO races VALUES (7, 'Spring Ten', 'Prestin', '2024-03-10', 10.0, 'road', 22.0);
INSERT INTO races VALUES (8, 'Capital Marathon', 'Prestin', '2024-04-21', 42.2, 'road', 95.0);
INSERT INTO races VALUES (9, 'Lake Loop', 'Castelro', '2024-05-12', 33.0, 'gravel', NULL);
INSERT INTO races VALUES (10, 'Charity Five', 'Lindhaven', '2024-06-09', 5.0, 'road', NULL);

INSERT INTO runners VALUES (1, 'Alice Tanner', 'F', 1963, 'Prestin Striders', 'British');
INSERT INTO runners VALUES (2, 'Bogdan Iliev', 'M', 1983, NULL, 'Bulgarian');
INSERT INTO runners VALUES (3, 'Celine Roux', 'F', 2002, 'Lindhaven AC', 'French');
INSERT INTO runners VALUES (4, 'David Achebe', 'M', 1976, 'Moos Mountain Club', 'German');
INSERT INTO runners VALUES (5, 'Eva Horvat', 'F', 1998, NULL, 'Croatian');
INSERT INTO runners VALUES (6, 'Felix Adeyemi', 'M', 1997, 'Moos Mountain Club', 'German');
INSERT INTO runners VALUES (7, 'Gloria Nunez', 'F', 1977, NULL, 'Spanish');
INSERT INTO runners VALUES (8, 'Henrik Olsen', 'M', 2001, 'Prestin Striders', 'Norwegian');
INSERT INTO runners VALUES (9, 'Ingrid Vik', 'F', 1972, 'Moos Mountain Club', 'Norwegian');
INSERT INTO runners VALUES (10, 'Joao Pires', 'M', 1997, 'Prestin Striders', 'Portuguese');
INSERT INTO runners VALUES (11, 'Kamila Zielinska', 'F', 1977, NULL, 'Polish');
INSERT INTO runners VALUES (12, 'Lars Winter', 'M', 2002, 'Prestin Striders', 'German');
INSERT INTO runners VALUES (13, 'Mona Keller', 'F', 1990, 'Lindhaven AC', 'German');
INSERT INTO runners VALUES (14, 'Nikos Pappas', 'M', 2001, 'Prestin Striders', 'Greek');
INSERT INTO runners VALUES (15, 'Olivia Grant', 'F', 1996, 'Prestin Striders', 'British');
INSERT INTO runners VALUES (16, 'Peter Szabo', 'M', 1983, NULL, 'Hungarian');
INSERT INTO runners VALUES (17, 'Renata Lopes', 'F', 1992, NULL, 'Portuguese');
INSERT INTO runners VALUES (18, 'Simon Falk', 'M', 1964, 'Lindhaven AC', 'German');
INSERT INTO runners VALUES (19, 'Tuuli Mäki', 'F', 1983, 'Prestin Striders', 'Finnish');
INSERT INTO runners VALUES (20, 'Viktor Hess', 'M', 1961, NULL, 'German');

INSERT INTO results VALUES (1, 1, 11, 404, 'finished', 207.6);
INSERT INTO results VALUES (2, 1, 16, 508, 'finished', 201.1);
INSERT INTO results VALUES (3, 1, 10, 94, 'finished', 264.7);
INSERT INTO results VALUES (4, 1, 9, 112, 'finished', 261.7);
INSERT INTO results VALUES (5, 1, 19, 609, 'finished', 229.5);
INSERT INTO results VALUES (6, 1, 3, 63, 'finished', 196.4);
INSERT INTO results VALUES (7, 2, 9, 715, 'finished', 205.6);
INSERT INTO results VALUES (8, 2, 18, 551, 'finished', 171.9);
INSERT INTO results VALUES (9, 2, 3, 930, 'finished', 153.4);
INSERT INTO results VALUES (10, 2, 13, 531, 'finished', 210.6);
INSERT INTO results VALUES (11, 3, 3, 441, 'finished', 43.2);
INSERT INTO results VALUES (12, 3, 8, 135, 'DNS', NULL);
INSERT INTO results VALUES (13, 3, 14, 237, 'finished', 42.9);
INSERT INTO results VALUES (14, 3, 16, 764, 'finished', 46.0);
INSERT INTO results VALUES (15, 3, 10, 809, 'finished', 58.5);
INSERT INTO results VALUES (16, 3, 1, 671, 'finished', 54.4);
INSERT INTO results VALUES (17, 3, 17, 825, 'DNF', NULL);
INSERT INTO results VALUES (18, 3, 9, 721, 'DNS', NULL);
INSERT INTO results VALUES (19, 3, 11, 757, 'finished', 43.5);
INSERT INTO results VALUES (20, 4, 17, 883, 'finished', 114.4);
INSERT INTO results VALUES (21, 4, 12, 838, 'finished', 122.1);
INSERT INTO results VALUES (22, 4, 9, 966, 'finished', 128.8);
INSERT INTO results VALUES (23, 4, 4, 503, 'finished', 122.6);
INSERT INTO results VALUES (24, 4, 6, 567, 'finished', 141.2);
INSERT INTO results VALUES (25, 4, 11, 438, 'finished', 108.0);
INSERT INTO results VALUES (26, 4, 1, 575, 'finished', 133.8);
INSERT INTO results VALUES (27, 5, 19, 741, 'finished', 114.3);
INSERT INTO results VALUES (28, 5, 9, 207, 'finished', 113.2);
INSERT INTO results VALUES (29, 5, 8, 143, 'finished', 111.0);
INSERT INTO results VALUES (30, 5, 6, 35, 'finished', 132.0);
INSERT INTO results VALUES (31, 5, 1, 928, 'finished', 116.2);
INSERT INTO results VALUES (32, 5, 4, 648, 'finished', 106.0);
INSERT INTO results VALUES (33, 5, 16, 717, 'finished', 102.4);
INSERT INTO results VALUES (34, 5, 10, 85, 'finished', 118.0);
INSERT INTO results VALUES (35, 6, 15, 559, 'DNF', NULL);
INSERT INTO results VALUES (36, 6, 6, 528, 'DNS', NULL);
INSERT INTO results VALUES (37, 6, 9, 745, 'finished', 106.1);
INSERT INTO results VALUES (38, 7, 10, 407, 'finished', 55.7);
INSERT INTO results VALUES (39, 7, 8, 336, 'finished', 51.5);
INSERT INTO results VALUES (40, 7, 7, 260, 'DNF', NULL);
INSERT INTO results VALUES (41, 7, 18, 221, 'finished', 41.9);
INSERT INTO results VALUES (42, 7, 14, 739, 'DNF', NULL);
INSERT INTO results VALUES (43, 7, 17, 44, 'finished', 43.3);
INSERT INTO results VALUES (44, 8, 14, 139, 'finished', 203.1);
INSERT INTO results VALUES (45, 8, 12, 101, 'DNF', NULL);
INSERT INTO results VALUES (46, 8, 18, 704, 'DNF', NULL);
INSERT INTO results VALUES (47, 8, 13, 943, 'finished', 265.3);
INSERT INTO results VALUES (48, 8, 16, 505, 'finished', 202.4);
INSERT INTO results VALUES (49, 8, 4, 937, 'finished', 236.2);
INSERT INTO results VALUES (50, 8, 1, 579, 'finished', 245.6);
INSERT INTO results VALUES (51, 9, 1, 778, 'finished', 207.8);
INSERT INTO results VALUES (52, 9, 5, 506, 'DNF', NULL);
INSERT INTO results VALUES (53, 9, 4, 744, 'finished', 183.0);
INSERT INTO results VALUES (54, 9, 2, 756, 'finished', 185.6);
INSERT INTO results VALUES (55, 10, 3, 62, 'finished', 20.1);
INSERT INTO results VALUES (56, 10, 11, 198, 'finished', 21.7);
INSERT INTO results VALUES (57, 10, 14, 188, 'finished', 20.7);
INSERT INTO results VALUES (58, 10, 18, 68, 'DNF', NULL);

INSERT INTO sponsors VALUES (1, 'Oatly Hill', 'food', 2, 6000, '2022-12-28');
INSERT INTO sponsors VALUES (2, 'Nordtex', 'sportswear', 1, 10500, '2022-09-30');
INSERT INTO sponsors VALUES (3, 'Mutual Health', 'insurance', 5, 10000, '2023-05-06');
INSERT INTO sponsors VALUES (4, 'Quickbyte', 'technology', 4, 5250, '2023-07-12');
INSERT INTO sponsors VALUES (5, 'Baker Lund', 'food', 4, 11500, '2023-06-28');
INSERT INTO sponsors VALUES (6, 'Mutual Health', 'insurance', 3, 16250, '2023-03-22');
INSERT INTO sponsors VALUES (7, 'Alpenglow Water', 'beverages', 4, 9500, '2023-08-13');
INSERT INTO sponsors VALUES (8, 'Volt Drinks', 'beverages', 8, 5000, '2023-12-13');
INSERT INTO sponsors VALUES (9, 'Alpenglow Water', 'beverages', 3, 2750, '2023-03-20');
INSERT INTO sponsors VALUES (10, 'Nordtex', 'sportswear', 5, 12000, '2023-08-16');
INSERT INTO sponsors VALUES (11, 'Quickbyte', 'technology', 8, 22250, '2024-03-12');
INSERT INTO sponsors VALUES (12, 'Mutual Health', 'insurance', 2, 20250, '2023-02-10');
INSERT INTO sponsors VALUES (13, 'Volt Drinks', 'beverages', 10, 25000, '2023-12-11');
INSERT INTO sponsors VALUES (14, 'Nordtex', 'sportswear', 4, 4750, '2023-03-26');
INSERT INTO sponsors VALUES (15, 'Tempo Watches', 'technology', 3, 16750, '2023-03-28');
INSERT INTO sponsors VALUES (16, 'Volt Drinks', 'beverages', 1, 16000, '2022-09-30');
INSERT INTO sponsors VALUES (17, 'Kasper Shoes', 'sportswear', 3, 14500, '2023-06-23');
INSERT INTO sponsors VALUES (18, 'Quickbyte', 'technology', 3, 22500, '2023-03-26');
INSERT INTO sponsors VALUES (19, 'Alpenglow Water', 'beverages', 8, 11750, '2023-11-12');

