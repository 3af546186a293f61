CREATE TABLE materials (
  material_id INTEGER PRIMARY KEY,
  material_name TEXT NOT NULL,
  material_group TEXT NOT NULL,
  fee_per_kg REAL,
  hazardous INTEGER NOT NULL,
  container TEXT NOT NULL
);
CREATE TABLE clients (
  client_id INTEGER PRIMARY KEY,
  client_name TEXT NOT NULL,
  client_kind TEXT NOT NULL,
  district TEXT,
  registered_on TEXT NOT NULL
);
CREATE TABLE deliveries (
  delivery_id INTEGER PRIMARY KEY,
  client_id INTEGER REFERENCES clients(client_id),
  material_id INTEGER NOT NULL REFERENCES materials(material_id),
  delivered_on TEXT NOT NULL,
  weight_kg REAL NOT NULL,
  vehicle TEXT NOT NULL,
  rejected INTEGER NOT NULL
);
CREATE TABLE shipments (
  shipment_id INTEGER PRIMARY KEY,
  material_id INTEGER NOT NULL REFERENCES materials(material_id),
  buyer TEXT NOT NULL,
  shipped_on TEXT NOT NULL,
  weight_kg INTEGER NOT NULL,
  revenue REAL
);

INSERT INTO materials VALUES (1, 'Newspaper', 'paper', 0.0, 0, 'bay');
INSERT INTO materials VALUES (2, 'Cardboard', 'paper', 0.0, 0, 'press');
INSERT INTO materials VALUES (3, 'Clear Glass', 'glass', 0.0, 0, 'skip');
INSERT INTO materials VALUES (4, 'Brown Glass', 'glass', 0.0, 0, 'skip');
INSERT INTO materials VALUES (5, 'Window Glass', 'glass', 0.08, 0, 'skip');
INSERT INTO materials VALUES (6, 'Scrap Iron', 'metal', 0.0, 0, 'bay');
INSERT INTO materials VALUES (7, 'Copper Wire', 'metal', NULL, 0, 'cage');
INSERT INTO materials VALUES (8, 'Aluminium', 'metal', NULL, 0, 'cage');
INSERT INTO materials VALUES (9, 'PET Bottles', 'plastic', 0.0, 0, 'press');
INSERT INTO materials VALUES (10, 'Plastic Film', 'plastic', 0.12, 0, 'press');
INSERT INTO materials VALUES (11, 'Car Batteries', 'electronics', 0.3, 1, 'cage');
INSERT INTO materials VALUES (12, 'Fridges', 'electronics', 0.45, 1, 'bay');
INSERT INTO materials VALUES (13, 'Screens', 'electronics', 0.25, 0, 'cage');
INSERT INTO materials VALUES (14, 'Paint and Solvents', 'chemicals', 1.1, 1, 'cabinet');
INSERT INTO materials VALUES (15, 'Waste Oil', 'chemicals', 0.7, 1, 'tank');
INSERT INTO materials VALUES (16, 'Garden Waste', 'organic', 0.05, 0, 'bay');
INSERT INTO materials VALUES (17, 'Treated Wood', 'wood', 0.15, 1, 'skip');
INSERT INTO materials VALUES (18, 'Pallets', 'wood', 0.02, 0, 'bay');

INSERT INTO clients VALUES (1, 'Berta Kolb', 'household', 'Centre', '2020-05-18');
INSERT INTO clients VALUES (2, 'Carpentry Hauser', 'business', NULL, '2020-04-16');
INSERT INTO clients VALUES (3, 'Dora Stich', 'household', NULL, '2022-01-22');
INSERT INTO clients VALUES (4, 'Emmerich Auto', 'business', 'North', '2018-11-08');
INSERT INTO clients VALUES (5, 'Frank Zoll', 'household', 'North', '2018-11-26');
INSERT INTO clients VALUES (6, 'Gasthof Linde', 'business', 'Centre', '2019-08-07');
INSERT INTO clients VALUES (7, 'Heidi Raab', 'household', 'North', '2021-09-22');
INSERT INTO clients VALUES (8, 'Iven Print', 'business', 'East', '2023-01-15');
INSERT INTO clients VALUES (9, 'Jana Pohl', 'household', 'Centre', '2020-12-17');
INSERT INTO clients VALUES (10, 'Primary School East', 'municipal', 'North', '2020-01-28');
INSERT INTO clients VALUES (11, 'Kurt Nagel', 'household', NULL, '2018-12-19');
INSERT INTO clients VALUES (12, 'Lotte Frey', 'household', 'Harbour', '2022-08-03');
INSERT INTO clients VALUES (13, 'Town Gardens', 'municipal', 'Harbour', '2020-01-27');
INSERT INTO clients VALUES (14, 'Metal Roofing Otto', 'business', 'East', '2018-03-19');
INSERT INTO clients VALUES (15, 'Norbert Quast', 'household', 'East', '2021-06-14');
INSERT INTO clients VALUES (16, 'Fire Brigade', 'municipal', 'Centre', '2023-05-17');

INSERT INTO deliveries VALUES (1, 12, 17, '2023-07-05', 9.1, 'trailer', 1);
INSERT INTO deliveries VALUES (2, 12, 15, '2023-07-06', 75.6, 'trailer', 0);
INSERT INTO deliveries VALUES (3, 9, 5, '2023-07-24', 11.3, 'car', 1);
INSERT INTO deliveries VALUES (4, 9, 6, '2023-08-05', 80.7, 'trailer', 1);
INSERT INTO deliveries VALUES (5, 4, 5, '2023-08-21', 261.2, 'van', 0);
INSERT INTO deliveries VALUES (6, 8, 1, '2023-08-22', 421.4, 'truck', 0);
INSERT INTO deliveries VALUES (7, 5, 9, '2023-09-03', 47.1, 'car', 0);
INSERT INTO deliveries VALUES (8, 9, 10, '2023-09-06', 41.6, 'car', 0);
INSERT INTO deliveries VALUES (9, 8, 9, '2023-09-11', 472.8, 'truck', 1);
INSERT INTO deliveries VALUES (10, 5, 8, '2023-09-19', 9.2, 'bicycle', 0);
INSERT INTO deliveries VALUES (11, 4, 16, '2023-10-06', 464.5, 'truck', 0);
INSERT INTO deliveries VALUES (12, NULL, 2, '2023-10-09', 44.0, 'car', 0);
INSERT INTO deliveries VALUES (13, 7, 8, '2023-10-11', 60.2, 'bicycle', 1);
INSERT INTO deliveries VALUES (14, 13, 3, '2023-10-12', 350.7, 'van', 0);
INSERT INTO deliveries VALUES (15, 5, 6, '2023-10-17', 61.9, 'bicycle', 0);
INSERT INTO deliveries VALUES (16, 10, 13, '2023-10-20', 251.4, 'truck', 0);
INSERT INTO deliveries VALUES (17, NULL, 1, '2023-10-23', 17.3, 'bicycle', 0);
INSERT INTO deliveries VALUES (18, 13, 3, '2023-10-30', 188.6, 'truck', 0);
INSERT INTO deliveries VALUES (19, 10, 11, '2023-11-06', 485.6, 'truck', 0);
INSERT INTO deliveries VALUES (20, 9, 8, '2023-11-12', 56.1, 'bicycle', 0);
INSERT INTO deliveries VALUES (21, 7, 7, '2023-11-13', 52.8, 'car', 0);
INSERT INTO deliveries VALUES (22, 12, 6, '2023-11-16', 75.4, 'trailer', 0);
INSERT INTO deliveries VALUES (23, 15, 8, '2023-11-17', 89.8, 'car', 0);
INSERT INTO deliveries VALUES (24, 3, 12, '2023-11-20', 18.8, 'trailer', 0);
INSERT INTO deliveries VALUES (25, 16, 16, '2023-11-20', 398.0, 'truck', 0);
INSERT INTO deliveries VALUES (26, 8, 5, '2023-12-01', 173.4, 'truck', 1);
INSERT INTO deliveries VALUES (27, 12, 9, '2023-12-08', 69.3, 'trailer', 1);
INSERT INTO deliveries VALUES (28, NULL, 17, '2023-12-08', 49.2, 'bicycle', 1);
INSERT INTO deliveries VALUES (29, 8, 6, '2023-12-16', 237.2, 'van', 0);
INSERT INTO deliveries VALUES (30, 8, 5, '2023-12-23', 312.8, 'van', 0);
INSERT INTO deliveries VALUES (31, NULL, 10, '2023-12-25', 18.2, 'car', 0);
INSERT INTO deliveries VALUES (32, 16, 16, '2024-01-01', 158.2, 'van', 0);
INSERT INTO deliveries VALUES (33, 16, 5, '2024-01-04', 58.6, 'truck', 0);
INSERT INTO deliveries VALUES (34, 7, 16, '2024-01-15', 26.1, 'car', 1);
INSERT INTO deliveries VALUES (35, 12, 10, '2024-01-16', 10.0, 'car', 0);
INSERT INTO deliveries VALUES (36, 5, 13, '2024-01-19', 76.9, 'car', 0);
INSERT INTO deliveries VALUES (37, 5, 2, '2024-01-25', 51.1, 'car', 1);
INSERT INTO deliveries VALUES (38, 2, 2, '2024-01-30', 706.8, 'van', 0);
INSERT INTO deliveries VALUES (39, 11, 14, '2024-02-02', 27.5, 'bicycle', 0);
INSERT INTO deliveries VALUES (40, 11, 14, '2024-02-03', 76.9, 'trailer', 0);
INSERT INTO deliveries VALUES (41, NULL, 12, '2024-02-04', 6.0, 'bicycle', 0);
INSERT INTO deliveries VALUES (42, 8, 10, '2024-02-17', 385.5, 'van', 0);
INSERT INTO deliveries VALUES (43, 13, 5, '2024-02-25', 480.9, 'truck', 0);
INSERT INTO deliveries VALUES (44, 5, 3, '2024-03-03', 82.9, 'car', 0);
INSERT INTO deliveries VALUES (45, 16, 15, '2024-03-14', 346.1, 'van', 0);
INSERT INTO deliveries VALUES (46, 11, 2, '2024-03-17', 84.7, 'car', 0);
INSERT INTO deliveries VALUES (47, 14, 11, '2024-03-19', 819.3, 'van', 0);
INSERT INTO deliveries VALUES (48, 8, 2, '2024-03-23', 277.0, 'truck', 1);
INSERT INTO deliveries VALUES (49, 2, 12, '2024-03-28', 194.0, 'van', 0);
INSERT INTO deliveries VALUES (50, 4, 5, '2024-04-02', 594.7, 'truck', 0);
INSERT INTO deliveries VALUES (51, 11, 3, '2024-04-02', 81.8, 'trailer', 1);
INSERT INTO deliveries VALUES (52, 11, 13, '2024-05-01', 6.5, 'trailer', 0);
INSERT INTO deliveries VALUES (53, 11, 6, '2024-05-06', 72.7, 'car', 0);
INSERT INTO deliveries VALUES (54, 6, 7, '2024-05-13', 517.2, 'van', 0);
INSERT INTO deliveries VALUES (55, 1, 14, '2024-05-19', 64.2, 'car', 0);
INSERT INTO deliveries VALUES (56, 9, 2, '2024-05-25', 44.9, 'bicycle', 0);
INSERT INTO deliveries VALUES (57, 5, 1, '2024-05-27', 44.6, 'bicycle', 0);
INSERT INTO deliveries VALUES (58, 2, 8, '2024-05-29', 694.8, 'van', 0);
INSERT INTO deliveries VALUES (59, 13, 16, '2024-06-11', 80.4, 'truck', 0);
INSERT INTO deliveries VALUES (60, 10, 13, '2024-06-19', 129.0, 'truck', 0);

INSERT INTO shipments VALUES (1, 13, 'Elektro Recover', '2023-08-02', 4480, 2670.45);
INSERT INTO shipments VALUES (2, 13, 'Elektro Recover', '2023-09-23', 1320, 550.03);
INSERT INTO shipments VALUES (3, 3, 'Glashütte Torgau', '2023-09-25', 1400, 59.71);
INSERT INTO shipments VALUES (4, 5, 'Glashütte Torgau', '2023-10-06', 2440, 118.8);
INSERT INTO shipments VALUES (5, 9, 'PolyCycle', '2023-10-12', 1960, 458.75);
INSERT INTO shipments VALUES (6, 9, 'PolyCycle', '2023-10-22', 760, 187.6);
INSERT INTO shipments VALUES (7, 4, 'Glashütte Torgau', '2023-11-01', 3840, 190.63);
INSERT INTO shipments VALUES (8, 16, 'Kompost Plus', '2023-11-25', 4280, 106.83);
INSERT INTO shipments VALUES (9, 7, 'Ferrum Trading', '2023-12-03', 1600, 861.42);
INSERT INTO shipments VALUES (10, 12, 'Elektro Recover', '2023-12-08', 4760, NULL);
INSERT INTO shipments VALUES (11, 2, 'Papierwerk Rhein', '2023-12-10', 4040, 340.8);
INSERT INTO shipments VALUES (12, 2, 'Papierwerk Rhein', '2023-12-19', 1200, 108.95);
INSERT INTO shipments VALUES (13, 8, 'Metall Union', '2024-01-02', 3120, 2050.26);
INSERT INTO shipments VALUES (14, 3, 'Glashütte Torgau', '2024-01-04', 640, 25.8);
INSERT INTO shipments VALUES (15, 11, 'Elektro Recover', '2024-01-14', 3200, 1302.41);
INSERT INTO shipments VALUES (16, 16, 'Kompost Plus', '2024-02-12', 2880, NULL);
INSERT INTO shipments VALUES (17, 10, 'PolyCycle', '2024-02-16', 3600, 629.33);
INSERT INTO shipments VALUES (18, 6, 'Ferrum Trading', '2024-02-24', 1720, NULL);
INSERT INTO shipments VALUES (19, 11, 'Elektro Recover', '2024-03-02', 2040, 846.45);
INSERT INTO shipments VALUES (20, 13, 'Elektro Recover', '2024-03-02', 3400, 1515.76);
INSERT INTO shipments VALUES (21, 13, 'Elektro Recover', '2024-03-06', 3080, 1514.71);
INSERT INTO shipments VALUES (22, 12, 'Elektro Recover', '2024-04-07', 3760, 1667.26);
INSERT INTO shipments VALUES (23, 9, 'PolyCycle', '2024-05-03', 2920, 599.37);
INSERT INTO shipments VALUES (24, 3, 'Glashütte Torgau', '2024-05-06', 1280, 43.39);
INSERT INTO shipments VALUES (25, 6, 'Ferrum Trading', '2024-05-14', 3800, 2445.76);
INSERT INTO shipments VALUES (26, 6, 'Metall Union', '2024-05-22', 3600, 2629.12);
INSERT INTO shipments VALUES (27, 16, 'Kompost Plus', '2024-05-29', 2760, 51.49);
INSERT INTO shipments VALUES (28, 2, 'Papierwerk Rhein', '2024-06-05', 840, 88.86);
INSERT INTO shipments VALUES (29, 12, 'Elektro Recover', '2024-06-11', 3200, 1392.03);
INSERT INTO shipments VALUES (30, 4, 'Glashütte Torgau', '2024-06-28', 3600, 149.84);

