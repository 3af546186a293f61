CREATE TABLE members (
  member_id INTEGER PRIMARY KEY,
  full_name TEXT NOT NULL,
  level TEXT NOT NULL,
  joined_on TEXT NOT NULL,
  monthly_fee REAL,
  email TEXT
);
CREATE TABLE workshops (
  workshop_id INTEGER PRIMARY KEY,
  title TEXT NOT NULL,
  technique TEXT NOT NULL,
  teacher TEXT NOT NULL,
  held_on TEXT NOT NULL,
  hours REAL NOT NULL,
  price REAL NOT NULL,
  places INTEGER NOT NULL
);
CREATE TABLE bookings (
  booking_id INTEGER PRIMARY KEY,
  workshop_id INTEGER NOT NULL REFERENCES workshops(workshop_id),
  member_id INTEGER NOT NULL REFERENCES members(member_id),
  booked_on TEXT NOT NULL,
  paid INTEGER NOT NULL
);
CREATE TABLE pieces (
  piece_id INTEGER PRIMARY KEY,
  member_id INTEGER NOT NULL REFERENCES members(member_id),
  form TEXT NOT NULL,
  clay TEXT NOT NULL,
  glaze TEXT,
  weight_g INTEGER NOT NULL,
  fired_on TEXT,
  outcome TEXT
);

INSERT INTO members VALUES (1, 'Abel Cruz', 'intermediate', '2020-04-19', 42.5, NULL);
INSERT INTO members VALUES (2, 'Bettina Kral', 'beginner', '2022-08-25', 48, 'bettina@kilnmail.org');
INSERT INTO members VALUES (3, 'Cosmo Reed', 'intermediate', '2020-01-25', 55, 'cosmo@kilnmail.org');
INSERT INTO members VALUES (4, 'Daria Novik', 'intermediate', '2020-07-11', 60, 'daria@postbox.net');
INSERT INTO members VALUES (5, 'Elias Thorn', 'intermediate', '2021-04-29', 60, 'elias@kilnmail.org');
INSERT INTO members VALUES (6, 'Frieda Lang', 'intermediate', '2022-09-17', 48, 'frieda@postbox.net');
INSERT INTO members VALUES (7, 'Gareth Pugh', 'intermediate', '2021-05-24', 55, 'gareth@postbox.net');
INSERT INTO members VALUES (8, 'Hana Sato', 'intermediate', '2021-04-15', 42.5, NULL);
INSERT INTO members VALUES (9, 'Iris Caldwell', 'advanced', '2021-02-05', 60, 'iris@postbox.net');
INSERT INTO members VALUES (10, 'Jonas Wolf', 'beginner', '2021-03-31', 48, 'jonas@postbox.net');
INSERT INTO members VALUES (11, 'Kirsten Moe', 'intermediate', '2020-02-17', 60, 'kirsten@kilnmail.org');
INSERT INTO members VALUES (12, 'Leon Baptiste', 'intermediate', '2023-11-13', 48, 'leon@kilnmail.org');
INSERT INTO members VALUES (13, 'Mira Solberg', 'intermediate', '2022-05-26', 42.5, 'mira@kilnmail.org');
INSERT INTO members VALUES (14, 'Nils Ackermann', 'advanced', '2020-07-11', 42.5, 'nils@postbox.net');
INSERT INTO members VALUES (15, 'Ottilie Brand', 'advanced', '2020-12-22', 55, 'ottilie@postbox.net');
INSERT INTO members VALUES (16, 'Pavel Zeman', 'beginner', '2023-01-22', 35, 'pavel@kilnmail.org');
INSERT INTO members VALUES (17, 'Ruth Okafor', 'advanced', '2020-06-11', 55, 'ruth@postbox.net');
INSERT INTO members VALUES (18, 'Samir Haddad', 'advanced', '2022-02-20', NULL, 'samir@postbox.net');

INSERT INTO workshops VALUES (1, 'Tile Making', 'handbuilding', 'Hiro Tanaka', '2023-05-07', 2.5, 125.0, 6);
INSERT INTO workshops VALUES (2, 'Crystal Glazes', 'glazing', 'Hiro Tanaka', '2023-05-08', 4, 165.0, 6);
INSERT INTO workshops VALUES (3, 'Glaze Chemistry', 'glazing', 'Tom Ivory', '2023-05-14', 8, 58.0, 4);
INSERT INTO workshops VALUES (4, 'Bowls for Beginners', 'throwing', 'Lena Marsh', '2023-05-24', 2.5, 110.0, 6);
INSERT INTO workshops VALUES (5, 'Smoke Firing', 'raku', 'Tom Ivory', '2023-05-29', 8, 79.0, 6);
INSERT INTO workshops VALUES (6, 'Mugs in a Morning', 'throwing', 'Lena Marsh', '2023-06-08', 8, 70.0, 8);
INSERT INTO workshops VALUES (7, 'Slab Boxes', 'handbuilding', 'Ines Duarte', '2023-06-10', 6, 52.0, 10);
INSERT INTO workshops VALUES (8, 'Teapot Weekend', 'throwing', 'Hiro Tanaka', '2023-06-27', 2, 85.0, 12);
INSERT INTO workshops VALUES (9, 'Raku Night', 'raku', 'Tom Ivory', '2023-09-16', 2, 98.0, 8);
INSERT INTO workshops VALUES (10, 'Tall Cylinders', 'throwing', 'Lena Marsh', '2023-09-18', 2, 64.0, 5);
INSERT INTO workshops VALUES (11, 'Celadon Day', 'glazing', 'Hiro Tanaka', '2023-10-24', 4, 92.0, 4);
INSERT INTO workshops VALUES (12, 'Pinch Pots', 'handbuilding', 'Ines Duarte', '2023-11-14', 6, 140.0, 6);
INSERT INTO workshops VALUES (13, 'Coil Vases', 'handbuilding', 'Ines Duarte', '2023-11-15', 3, 75.0, 5);
INSERT INTO workshops VALUES (14, 'Plates and Trays', 'throwing', 'Lena Marsh', '2024-03-08', 2, 45.0, 8);

INSERT INTO bookings VALUES (1, 1, 1, '2023-03-29', 1);
INSERT INTO bookings VALUES (2, 4, 9, '2023-04-04', 1);
INSERT INTO bookings VALUES (3, 1, 3, '2023-04-07', 1);
INSERT INTO bookings VALUES (4, 5, 1, '2023-04-11', 1);
INSERT INTO bookings VALUES (5, 3, 1, '2023-04-12', 0);
INSERT INTO bookings VALUES (6, 1, 11, '2023-04-13', 0);
INSERT INTO bookings VALUES (7, 4, 3, '2023-04-19', 1);
INSERT INTO bookings VALUES (8, 4, 7, '2023-04-23', 1);
INSERT INTO bookings VALUES (9, 4, 12, '2023-04-24', 1);
INSERT INTO bookings VALUES (10, 6, 3, '2023-04-25', 1);
INSERT INTO bookings VALUES (11, 1, 5, '2023-04-25', 1);
INSERT INTO bookings VALUES (12, 4, 8, '2023-05-06', 1);
INSERT INTO bookings VALUES (13, 3, 13, '2023-05-06', 1);
INSERT INTO bookings VALUES (14, 7, 11, '2023-05-08', 1);
INSERT INTO bookings VALUES (15, 5, 8, '2023-05-13', 1);
INSERT INTO bookings VALUES (16, 6, 1, '2023-05-15', 1);
INSERT INTO bookings VALUES (17, 4, 5, '2023-05-15', 1);
INSERT INTO bookings VALUES (18, 8, 12, '2023-05-19', 1);
INSERT INTO bookings VALUES (19, 7, 1, '2023-05-20', 1);
INSERT INTO bookings VALUES (20, 6, 8, '2023-05-20', 0);
INSERT INTO bookings VALUES (21, 7, 15, '2023-05-22', 1);
INSERT INTO bookings VALUES (22, 6, 16, '2023-06-01', 1);
INSERT INTO bookings VALUES (23, 7, 8, '2023-06-04', 1);
INSERT INTO bookings VALUES (24, 8, 8, '2023-06-05', 0);
INSERT INTO bookings VALUES (25, 7, 9, '2023-06-07', 1);
INSERT INTO bookings VALUES (26, 8, 9, '2023-06-11', 1);
INSERT INTO bookings VALUES (27, 8, 5, '2023-06-16', 0);
INSERT INTO bookings VALUES (28, 8, 4, '2023-06-19', 1);
INSERT INTO bookings VALUES (29, 9, 1, '2023-07-28', 1);
INSERT INTO bookings VALUES (30, 9, 7, '2023-08-04', 1);
INSERT INTO bookings VALUES (31, 9, 3, '2023-08-05', 1);
INSERT INTO bookings VALUES (32, 9, 12, '2023-09-01', 0);
INSERT INTO bookings VALUES (33, 11, 1, '2023-09-07', 1);
INSERT INTO bookings VALUES (34, 11, 7, '2023-09-08', 1);
INSERT INTO bookings VALUES (35, 9, 17, '2023-09-08', 1);
INSERT INTO bookings VALUES (36, 9, 8, '2023-09-09', 0);
INSERT INTO bookings VALUES (37, 10, 8, '2023-09-10', 1);
INSERT INTO bookings VALUES (38, 10, 11, '2023-09-13', 1);
INSERT INTO bookings VALUES (39, 10, 15, '2023-09-16', 1);
INSERT INTO bookings VALUES (40, 11, 18, '2023-10-15', 1);
INSERT INTO bookings VALUES (41, 12, 8, '2023-10-16', 0);
INSERT INTO bookings VALUES (42, 11, 17, '2023-10-21', 0);
INSERT INTO bookings VALUES (43, 13, 1, '2023-10-26', 0);
INSERT INTO bookings VALUES (44, 13, 7, '2023-11-13', 1);
INSERT INTO bookings VALUES (45, 14, 8, '2024-01-18', 1);
INSERT INTO bookings VALUES (46, 14, 17, '2024-02-03', 1);
INSERT INTO bookings VALUES (47, 14, 5, '2024-02-11', 1);
INSERT INTO bookings VALUES (48, 14, 15, '2024-03-05', 1);

INSERT INTO pieces VALUES (1, 13, 'vase', 'stoneware', 'clear', 839, '2023-05-03', 'glaze fault');
INSERT INTO pieces VALUES (2, 1, 'mug', 'earthenware', 'shino', 350, '2023-05-04', 'cracked');
INSERT INTO pieces VALUES (3, 11, 'bowl', 'stoneware', 'clear', 878, '2023-05-17', 'good');
INSERT INTO pieces VALUES (4, 18, 'vase', 'stoneware', 'clear', 1204, '2023-05-31', 'cracked');
INSERT INTO pieces VALUES (5, 2, 'mug', 'stoneware', 'celadon', 441, '2023-06-05', 'good');
INSERT INTO pieces VALUES (6, 9, 'plate', 'porcelain', 'clear', 894, '2023-06-13', 'good');
INSERT INTO pieces VALUES (7, 18, 'bowl', 'earthenware', 'celadon', 518, '2023-06-22', 'good');
INSERT INTO pieces VALUES (8, 13, 'plate', 'stoneware', 'tenmoku', 988, '2023-06-29', 'glaze fault');
INSERT INTO pieces VALUES (9, 3, 'plate', 'porcelain', 'celadon', 581, '2023-07-06', 'good');
INSERT INTO pieces VALUES (10, 9, 'mug', 'porcelain', 'matte white', 254, '2023-07-07', 'good');
INSERT INTO pieces VALUES (11, 12, 'plate', 'porcelain', 'matte white', 941, '2023-07-11', 'good');
INSERT INTO pieces VALUES (12, 17, 'teapot', 'stoneware', 'shino', 1400, '2023-08-04', 'good');
INSERT INTO pieces VALUES (13, 6, 'mug', 'stoneware', 'matte white', 320, '2023-08-07', 'glaze fault');
INSERT INTO pieces VALUES (14, 8, 'vase', 'earthenware', 'tenmoku', 1515, '2023-08-10', 'good');
INSERT INTO pieces VALUES (15, 8, 'bowl', 'porcelain', NULL, 375, '2023-08-10', 'cracked');
INSERT INTO pieces VALUES (16, 9, 'bowl', 'stoneware', 'shino', 732, '2023-08-14', 'cracked');
INSERT INTO pieces VALUES (17, 1, 'mug', 'stoneware', NULL, 236, '2023-09-14', 'glaze fault');
INSERT INTO pieces VALUES (18, 8, 'bowl', 'porcelain', 'tenmoku', 524, '2023-10-08', 'good');
INSERT INTO pieces VALUES (19, 5, 'bowl', 'earthenware', 'celadon', 645, '2023-10-14', 'good');
INSERT INTO pieces VALUES (20, 5, 'bowl', 'stoneware', NULL, 547, '2023-10-19', 'glaze fault');
INSERT INTO pieces VALUES (21, 14, 'mug', 'earthenware', 'matte white', 262, '2023-10-23', 'good');
INSERT INTO pieces VALUES (22, 8, 'bowl', 'porcelain', 'celadon', 669, '2023-11-06', 'glaze fault');
INSERT INTO pieces VALUES (23, 9, 'bowl', 'stoneware', 'clear', 424, '2023-11-19', 'good');
INSERT INTO pieces VALUES (24, 5, 'bowl', 'earthenware', 'shino', 815, '2023-11-22', 'good');
INSERT INTO pieces VALUES (25, 1, 'mug', 'stoneware', 'celadon', 439, '2023-11-24', 'good');
INSERT INTO pieces VALUES (26, 17, 'bowl', 'stoneware', 'shino', 364, '2023-12-11', 'glaze fault');
INSERT INTO pieces VALUES (27, 1, 'plate', 'porcelain', 'shino', 834, '2023-12-12', 'glaze fault');
INSERT INTO pieces VALUES (28, 12, 'plate', 'earthenware', 'matte white', 531, '2024-01-22', 'good');
INSERT INTO pieces VALUES (29, 3, 'mug', 'earthenware', NULL, 386, '2024-01-31', 'good');
INSERT INTO pieces VALUES (30, 1, 'mug', 'porcelain', 'shino', 388, NULL, NULL);
INSERT INTO pieces VALUES (31, 9, 'vase', 'stoneware', 'celadon', 1019, '2024-02-06', 'cracked');
INSERT INTO pieces VALUES (32, 10, 'bowl', 'earthenware', NULL, 594, '2024-02-14', 'cracked');
INSERT INTO pieces VALUES (33, 9, 'bowl', 'stoneware', NULL, 812, '2024-02-15', 'glaze fault');
INSERT INTO pieces VALUES (34, 3, 'bowl', 'stoneware', 'celadon', 479, '2024-02-15', 'glaze fault');
INSERT INTO pieces VALUES (35, 11, 'bowl', 'stoneware', 'celadon', 737, '2024-02-20', 'good');
INSERT INTO pieces VALUES (36, 2, 'mug', 'porcelain', 'shino', 430, '2024-02-21', 'cracked');
INSERT INTO pieces VALUES (37, 5, 'sculpture', 'stoneware', 'celadon', 2842, '2024-02-23', 'glaze fault');
INSERT INTO pieces VALUES (38, 9, 'mug', 'earthenware', 'matte white', 419, '2024-02-25', 'cracked');
INSERT INTO pieces VALUES (39, 4, 'mug', 'stoneware', 'clear', 449, '2024-03-10', 'cracked');
INSERT INTO pieces VALUES (40, 12, 'bowl', 'porcelain', 'matte white', 812, '2024-03-18', 'good');
INSERT INTO pieces VALUES (41, 15, 'mug', 'stoneware', 'celadon', 297, '2024-03-21', 'cracked');
INSERT INTO pieces VALUES (42, 12, 'mug', 'porcelain', 'clear', 267, '2024-03-29', 'good');
INSERT INTO pieces VALUES (43, 5, 'plate', 'porcelain', 'matte white', 930, '2024-03-29', 'good');
INSERT INTO pieces VALUES (44, 6, 'bowl', 'stoneware', 'matte white', 867, '2024-03-30', 'cracked');
INSERT INTO pieces VALUES (45, 7, 'bowl', 'stoneware', NULL, 478, '2024-04-10', 'good');
INSERT INTO pieces VALUES (46, 9, 'bowl', 'porcelain', 'matte white', 631, '2024-04-13', 'good');
INSERT INTO pieces VALUES (47, 4, 'plate', 'porcelain', 'clear', 594, '2024-04-13', 'good');
INSERT INTO pieces VALUES (48, 5, 'mug', 'porcelain', 'matte white', 232, '2024-04-14', 'good');
INSERT INTO pieces VALUES (49, 2, 'plate', 'stoneware', 'celadon', 1008, '2024-04-17', 'good');
INSERT INTO pieces VALUES (50, 10, 'plate', 'earthenware', 'clear', 525, '2024-04-23', 'glaze fault');
INSERT INTO pieces VALUES (51, 11, 'teapot', 'stoneware', 'matte white', 1281, '2024-04-28', 'good');
INSERT INTO pieces VALUES (52, 1, 'vase', 'stoneware', NULL, 1263, NULL, NULL);
INSERT INTO pieces VALUES (53, 3, 'teapot', 'earthenware', 'tenmoku', 1429, NULL, NULL);
INSERT INTO pieces VALUES (54, 10, 'bowl', 'porcelain', 'shino', 440, NULL, NULL);
INSERT INTO pieces VALUES (55, 15, 'vase', 'stoneware', 'shino', 1352, NULL, NULL);
INSERT INTO pieces VALUES (56, 2, 'bowl', 'earthenware', 'matte white', 526, NULL, NULL);

