CREATE TABLE suppliers (
  supplier_id INTEGER PRIMARY KEY,
  supplier_name TEXT NOT NULL,
  country TEXT NOT NULL,
  lead_days INTEGER,
  organic INTEGER NOT NULL
);
CREATE TABLE plants (
  plant_id INTEGER PRIMARY KEY,
  common_name TEXT NOT NULL,
  category TEXT NOT NULL,
  light TEXT,
  price REAL NOT NULL,
  stock_qty INTEGER NOT NULL,
  pot_cm INTEGER,
  supplier_id INTEGER REFERENCES suppliers(supplier_id)
);
CREATE TABLE customers (
  customer_id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  town TEXT,
  customer_type TEXT NOT NULL,
  joined_on TEXT NOT NULL
);
CREATE TABLE sales (
  sale_id INTEGER PRIMARY KEY,
  plant_id INTEGER NOT NULL REFERENCES plants(plant_id),
  customer_id INTEGER REFERENCES customers(customer_id),
  sold_on TEXT NOT NULL,
  quantity INTEGER NOT NULL,
  total REAL NOT NULL,
  channel TEXT NOT NULL
);

INSERT INTO suppliers VALUES (1, 'Greenholt Growers', 'Netherlands', 6, 0);
INSERT INTO suppliers VALUES (2, 'Bosveld Kwekerij', 'Netherlands', 9, 1);
INSERT INTO suppliers VALUES (3, 'Vivaio Serrano', 'Italy', 14, 1);
INSERT INTO suppliers VALUES (4, 'Moorland Seedlings', 'Ireland', 11, 1);
INSERT INTO suppliers VALUES (5, 'Baumschule Ahrens', 'Germany', 8, 0);
INSERT INTO suppliers VALUES (6, 'Pepinieres du Lac', 'France', NULL, 0);
INSERT INTO suppliers VALUES (7, 'Hartmann Stauden', 'Germany', 5, 1);
INSERT INTO suppliers VALUES (8, 'Casa Verde', 'Italy', 17, 0);

INSERT INTO plants VALUES (1, 'Lavender', 'perennial', 'full sun', 6.45, 0, 13, 1);
INSERT INTO plants VALUES (2, 'Hosta', 'perennial', 'shade', 7.95, 116, 13, 5);
INSERT INTO plants VALUES (3, 'Coneflower', 'perennial', 'full sun', 6.95, 13, 17, 7);
INSERT INTO plants VALUES (4, 'Astilbe', 'perennial', 'shade', 10.95, 110, 11, 3);
INSERT INTO plants VALUES (5, 'Catmint', 'perennial', 'full sun', 5.95, 3, 11, 5);
INSERT INTO plants VALUES (6, 'Bleeding Heart', 'perennial', 'partial shade', 14.45, 30, 17, 4);
INSERT INTO plants VALUES (7, 'Lady Fern', 'perennial', 'shade', 7.45, 9, 17, 5);
INSERT INTO plants VALUES (8, 'Cherry Laurel', 'shrub', 'partial shade', 34.45, 175, 23, 6);
INSERT INTO plants VALUES (9, 'Hydrangea', 'shrub', 'partial shade', 25.95, 22, 19, 7);
INSERT INTO plants VALUES (10, 'Forsythia', 'shrub', 'full sun', 28.95, 18, 23, 2);
INSERT INTO plants VALUES (11, 'Boxwood', 'shrub', NULL, 33.45, 107, 23, 2);
INSERT INTO plants VALUES (12, 'Lilac', 'shrub', 'full sun', 29.95, 16, 26, 5);
INSERT INTO plants VALUES (13, 'Silver Birch', 'tree', 'full sun', 48.95, 20, NULL, 5);
INSERT INTO plants VALUES (14, 'Japanese Maple', 'tree', 'partial shade', 87.95, 93, NULL, 7);
INSERT INTO plants VALUES (15, 'Apple Topaz', 'tree', 'full sun', 124.45, 17, 30, 8);
INSERT INTO plants VALUES (16, 'Olive', 'tree', 'full sun', 109.95, 21, 30, 8);
INSERT INTO plants VALUES (17, 'Fig', 'tree', 'full sun', 132.45, 29, 36, 2);
INSERT INTO plants VALUES (18, 'Basil', 'herb', 'full sun', 4.95, 24, 12, 1);
INSERT INTO plants VALUES (19, 'Rosemary', 'herb', 'full sun', 4.45, 11, 9, 1);
INSERT INTO plants VALUES (20, 'Mint', 'herb', 'partial shade', 3.45, 0, 12, 8);
INSERT INTO plants VALUES (21, 'Chives', 'herb', NULL, 2.45, 0, 12, 3);
INSERT INTO plants VALUES (22, 'Lemon Thyme', 'herb', 'full sun', 2.95, 35, 9, 7);
INSERT INTO plants VALUES (23, 'Petunia', 'annual', 'full sun', 1.95, 31, 9, 6);
INSERT INTO plants VALUES (24, 'Begonia', 'annual', 'shade', 4.95, 38, 9, 5);
INSERT INTO plants VALUES (25, 'Marigold', 'annual', 'full sun', 1.95, 0, 11, 3);
INSERT INTO plants VALUES (26, 'Lobelia', 'annual', 'partial shade', 3.95, 71, 11, 5);

INSERT INTO customers VALUES (1, 'Ada Fenwick', 'Kessel', 'private', '2023-02-26');
INSERT INTO customers VALUES (2, 'Boris Lund', 'Brunnen', 'private', '2021-02-04');
INSERT INTO customers VALUES (3, 'Carla Mendes', 'Kessel', 'private', '2022-07-30');
INSERT INTO customers VALUES (4, 'Dieter Voss', 'Mohrdorf', 'private', '2019-12-20');
INSERT INTO customers VALUES (5, 'Edda Sommer', 'Mohrdorf', 'private', '2023-08-29');
INSERT INTO customers VALUES (6, 'Finn Oakley', 'Mohrdorf', 'private', '2023-11-28');
INSERT INTO customers VALUES (7, 'Gita Rao', 'Althaus', 'private', '2023-11-10');
INSERT INTO customers VALUES (8, 'Hotel Seeblick', NULL, 'business', '2021-03-13');
INSERT INTO customers VALUES (9, 'Igor Petrov', NULL, 'private', '2022-11-15');
INSERT INTO customers VALUES (10, 'Jonna Ek', 'Mohrdorf', 'private', '2020-07-06');
INSERT INTO customers VALUES (11, 'Kranz Landscaping', 'Brunnen', 'business', '2024-02-18');
INSERT INTO customers VALUES (12, 'Lucia Ferri', 'Brunnen', 'private', '2021-12-01');
INSERT INTO customers VALUES (13, 'Town of Althaus', 'Althaus', 'public body', '2019-03-31');
INSERT INTO customers VALUES (14, 'Nora Blythe', 'Brunnen', 'private', '2023-05-18');
INSERT INTO customers VALUES (15, 'Olaf Brandt', 'Althaus', 'private', '2023-08-04');
INSERT INTO customers VALUES (16, 'Parkside Clinic', 'Kessel', 'business', '2024-01-25');
INSERT INTO customers VALUES (17, 'Quentin Dale', 'Brunnen', 'private', '2023-12-21');
INSERT INTO customers VALUES (18, 'Rosa Imhof', 'Althaus', 'private', '2019-05-19');

INSERT INTO sales VALUES (1, 15, 18, '2023-04-13', 1, 124.45, 'online');
INSERT INTO sales VALUES (2, 5, 3, '2023-04-23', 4, 23.8, 'shop');
INSERT INTO sales VALUES (3, 15, 11, '2023-04-24', 3, 336.02, 'shop');
INSERT INTO sales VALUES (4, 22, 5, '2023-04-27', 3, 8.85, 'shop');
INSERT INTO sales VALUES (5, 23, 4, '2023-05-18', 3, 5.85, 'shop');
INSERT INTO sales VALUES (6, 23, 7, '2023-05-27', 4, 7.8, 'online');
INSERT INTO sales VALUES (7, 4, 12, '2023-06-07', 4, 43.8, 'online');
INSERT INTO sales VALUES (8, 5, 13, '2023-06-11', 9, 48.2, 'shop');
INSERT INTO sales VALUES (9, 10, 12, '2023-06-12', 3, 86.85, 'online');
INSERT INTO sales VALUES (10, 10, 4, '2023-06-16', 1, 28.95, 'shop');
INSERT INTO sales VALUES (11, 2, 17, '2023-07-08', 1, 7.95, 'online');
INSERT INTO sales VALUES (12, 8, 14, '2023-07-29', 2, 68.9, 'online');
INSERT INTO sales VALUES (13, 8, 9, '2023-08-01', 2, 68.9, 'shop');
INSERT INTO sales VALUES (14, 16, 14, '2023-08-15', 4, 439.8, 'online');
INSERT INTO sales VALUES (15, 3, 4, '2023-08-23', 2, 13.9, 'online');
INSERT INTO sales VALUES (16, 18, 16, '2023-09-07', 9, 40.1, 'shop');
INSERT INTO sales VALUES (17, 17, 6, '2023-09-21', 3, 397.35, 'shop');
INSERT INTO sales VALUES (18, 21, 4, '2023-09-25', 1, 2.45, 'online');
INSERT INTO sales VALUES (19, 12, 11, '2023-09-26', 18, 485.19, 'online');
INSERT INTO sales VALUES (20, 6, 18, '2023-09-27', 3, 43.35, 'phone');
INSERT INTO sales VALUES (21, 22, 13, '2023-10-05', 6, 15.93, 'shop');
INSERT INTO sales VALUES (22, 23, 17, '2023-10-16', 3, 5.85, 'online');
INSERT INTO sales VALUES (23, 18, 12, '2023-10-23', 3, 14.85, 'shop');
INSERT INTO sales VALUES (24, 11, NULL, '2023-11-09', 1, 33.45, 'shop');
INSERT INTO sales VALUES (25, 14, 12, '2023-11-13', 1, 87.95, 'phone');
INSERT INTO sales VALUES (26, 7, 11, '2023-11-17', 23, 154.22, 'shop');
INSERT INTO sales VALUES (27, 11, 15, '2023-11-22', 2, 66.9, 'online');
INSERT INTO sales VALUES (28, 2, 3, '2023-11-24', 2, 15.9, 'online');
INSERT INTO sales VALUES (29, 21, 13, '2023-11-28', 21, 46.31, 'online');
INSERT INTO sales VALUES (30, 7, 10, '2023-12-03', 1, 7.45, 'shop');
INSERT INTO sales VALUES (31, 19, 8, '2023-12-08', 16, 64.08, 'online');
INSERT INTO sales VALUES (32, 2, 17, '2023-12-09', 4, 31.8, 'shop');
INSERT INTO sales VALUES (33, 1, 9, '2023-12-18', 2, 12.9, 'shop');
INSERT INTO sales VALUES (34, 5, 13, '2023-12-25', 25, 133.88, 'shop');
INSERT INTO sales VALUES (35, 19, NULL, '2023-12-28', 4, 17.8, 'shop');
INSERT INTO sales VALUES (36, 15, 11, '2023-12-29', 4, 448.02, 'shop');
INSERT INTO sales VALUES (37, 12, NULL, '2024-01-11', 2, 59.9, 'shop');
INSERT INTO sales VALUES (38, 25, NULL, '2024-01-15', 3, 5.85, 'shop');
INSERT INTO sales VALUES (39, 3, 1, '2024-01-18', 2, 13.9, 'online');
INSERT INTO sales VALUES (40, 17, 5, '2024-01-21', 1, 132.45, 'shop');
INSERT INTO sales VALUES (41, 24, 13, '2024-02-02', 8, 35.64, 'online');
INSERT INTO sales VALUES (42, 3, 7, '2024-02-05', 2, 13.9, 'shop');
INSERT INTO sales VALUES (43, 13, NULL, '2024-02-09', 3, 146.85, 'shop');
INSERT INTO sales VALUES (44, 26, 14, '2024-02-12', 2, 7.9, 'online');
INSERT INTO sales VALUES (45, 18, 9, '2024-02-18', 4, 19.8, 'phone');
INSERT INTO sales VALUES (46, 6, 12, '2024-02-21', 3, 43.35, 'phone');
INSERT INTO sales VALUES (47, 21, 10, '2024-03-08', 4, 9.8, 'online');
INSERT INTO sales VALUES (48, 7, 8, '2024-03-23', 8, 53.64, 'shop');
INSERT INTO sales VALUES (49, 23, 2, '2024-03-23', 3, 5.85, 'phone');
INSERT INTO sales VALUES (50, 15, 18, '2024-03-27', 4, 497.8, 'online');
INSERT INTO sales VALUES (51, 5, 11, '2024-04-02', 17, 91.04, 'shop');
INSERT INTO sales VALUES (52, 21, 5, '2024-04-29', 2, 4.9, 'online');
INSERT INTO sales VALUES (53, 15, NULL, '2024-05-10', 3, 373.35, 'shop');
INSERT INTO sales VALUES (54, 9, 3, '2024-05-18', 4, 103.8, 'shop');
INSERT INTO sales VALUES (55, 21, 6, '2024-05-28', 3, 7.35, 'online');
INSERT INTO sales VALUES (56, 5, 1, '2024-06-04', 1, 5.95, 'shop');
INSERT INTO sales VALUES (57, 25, 1, '2024-06-04', 1, 1.95, 'online');
INSERT INTO sales VALUES (58, 19, NULL, '2024-06-19', 4, 17.8, 'shop');

