CREATE TABLE instructors (
  instructor_id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  hired_on TEXT NOT NULL,
  hourly_rate REAL NOT NULL,
  lifeguard INTEGER NOT NULL
);
CREATE TABLE courses (
  course_id INTEGER PRIMARY KEY,
  title TEXT NOT NULL,
  age_group TEXT NOT NULL,
  basin TEXT NOT NULL,
  instructor_id INTEGER REFERENCES instructors(instructor_id),
  start_date TEXT NOT NULL,
  lessons INTEGER NOT NULL,
  fee REAL NOT NULL,
  max_participants INTEGER
);
CREATE TABLE enrolments (
  enrolment_id INTEGER PRIMARY KEY,
  course_id INTEGER NOT NULL REFERENCES courses(course_id),
  participant TEXT NOT NULL,
  age INTEGER,
  district TEXT,
  enrolled_on TEXT NOT NULL,
  status TEXT NOT NULL
);
CREATE TABLE water_tests (
  test_id INTEGER PRIMARY KEY,
  basin TEXT NOT NULL,
  tested_on TEXT NOT NULL,
  chlorine REAL NOT NULL,
  ph REAL NOT NULL,
  temperature REAL
);

INSERT INTO instructors VALUES (1, 'Marta Silva', '2016-04-01', 31.5, 1);
INSERT INTO instructors VALUES (2, 'Owen Pryce', '2019-09-15', 27.0, 1);
INSERT INTO instructors VALUES (3, 'Karin Aalto', '2021-02-01', 25.5, 0);
INSERT INTO instructors VALUES (4, 'Dev Anand', '2022-06-10', 24.0, 0);
INSERT INTO instructors VALUES (5, 'Sophie Blanc', '2018-01-08', 29.0, 1);
INSERT INTO instructors VALUES (6, 'Jiri Kolar', '2023-03-20', 23.0, 0);
INSERT INTO instructors VALUES (7, 'Tilde Noor', '2023-11-01', 22.5, 1);
INSERT INTO instructors VALUES (8, 'Ray Castellan', '2014-08-25', 33.0, 0);

INSERT INTO courses VALUES (1, 'Tadpoles', 'toddlers', 'teaching', 3, '2023-09-01', 8, 112.0, 10);
INSERT INTO courses VALUES (2, 'Seahorse Badge', 'children', 'teaching', 4, '2024-04-05', 6, 45.0, 12);
INSERT INTO courses VALUES (3, 'Bronze Swimmer', 'children', 'main', 4, '2023-11-03', 12, 54.0, 10);
INSERT INTO courses VALUES (4, 'Silver Swimmer', 'children', 'main', 5, '2024-02-13', 8, 84.0, NULL);
INSERT INTO courses VALUES (5, 'Aqua Fitness', 'adults', 'leisure', 3, '2023-09-27', 6, 105.0, 6);
INSERT INTO courses VALUES (6, 'Gentle Aqua', 'seniors', 'leisure', 4, '2024-05-07', 6, 120.0, NULL);
INSERT INTO courses VALUES (7, 'Front Crawl Basics', 'adults', 'main', 6, '2024-04-29', 8, 66.0, 12);
INSERT INTO courses VALUES (8, 'Deep Water Confidence', 'adults', 'diving', NULL, '2023-11-22', 8, 90.0, 10);
INSERT INTO courses VALUES (9, 'Springboard Start', 'teens', 'diving', 1, '2023-11-26', 8, 135.0, 12);
INSERT INTO courses VALUES (10, 'Junior Lifesavers', 'teens', 'main', 2, '2024-03-20', 8, 78.0, 10);
INSERT INTO courses VALUES (11, 'Parent and Baby', 'toddlers', 'teaching', 1, '2024-04-01', 10, 96.0, 10);
INSERT INTO courses VALUES (12, 'Masters Training', 'adults', 'main', 6, '2024-01-06', 8, 48.0, 10);
INSERT INTO courses VALUES (13, 'Back Care', 'seniors', 'teaching', 2, '2024-05-30', 8, 60.0, NULL);
INSERT INTO courses VALUES (14, 'Water Polo Taster', 'teens', 'main', 2, '2024-03-02', 12, 39.0, 6);
INSERT INTO courses VALUES (15, 'Holiday Crash Course', 'children', 'teaching', 4, '2024-01-13', 6, 72.0, 8);

INSERT INTO enrolments VALUES (1, 1, 'Gus Kovac', 2, 'Hillside', '2023-07-10', 'confirmed');
INSERT INTO enrolments VALUES (2, 1, 'Otto Farkas', 1, NULL, '2023-07-12', 'confirmed');
INSERT INTO enrolments VALUES (3, 1, 'Pia Berger', 2, 'Riverbank', '2023-07-14', 'confirmed');
INSERT INTO enrolments VALUES (4, 5, 'Jade Iversen', 53, NULL, '2023-08-01', 'confirmed');
INSERT INTO enrolments VALUES (5, 5, 'Otto Jansen', 37, NULL, '2023-08-02', 'confirmed');
INSERT INTO enrolments VALUES (6, 5, 'Dana Jansen', 48, 'Hillside', '2023-08-05', 'confirmed');
INSERT INTO enrolments VALUES (7, 1, 'Wanda Jansen', 3, 'Old Town', '2023-08-05', 'confirmed');
INSERT INTO enrolments VALUES (8, 5, 'Rita Castro', 23, 'Riverbank', '2023-08-13', 'cancelled');
INSERT INTO enrolments VALUES (9, 5, 'Ben Berger', 38, 'Old Town', '2023-08-16', 'confirmed');
INSERT INTO enrolments VALUES (10, 1, 'Xaver Novotny', 3, 'Hillside', '2023-08-20', 'confirmed');
INSERT INTO enrolments VALUES (11, 1, 'Zeno Lowe', 2, 'Riverbank', '2023-08-22', 'confirmed');
INSERT INTO enrolments VALUES (12, 3, 'Umi Hale', 9, 'Old Town', '2023-09-21', 'confirmed');
INSERT INTO enrolments VALUES (13, 5, 'Ben Hale', 24, NULL, '2023-09-25', 'confirmed');
INSERT INTO enrolments VALUES (14, 3, 'Jade Abbot', 7, 'Riverbank', '2023-09-29', 'confirmed');
INSERT INTO enrolments VALUES (15, 3, 'Vito Berger', 11, NULL, '2023-10-01', 'cancelled');
INSERT INTO enrolments VALUES (16, 3, 'Rita Dunn', 7, 'Old Town', '2023-10-06', 'confirmed');
INSERT INTO enrolments VALUES (17, 9, 'Max Jansen', 17, 'Old Town', '2023-10-09', 'cancelled');
INSERT INTO enrolments VALUES (18, 8, 'Nia Lowe', 48, NULL, '2023-10-10', 'confirmed');
INSERT INTO enrolments VALUES (19, 3, 'Rita Novotny', 7, NULL, '2023-10-11', 'confirmed');
INSERT INTO enrolments VALUES (20, 3, 'Vito Farkas', 9, 'Riverbank', '2023-10-21', 'confirmed');
INSERT INTO enrolments VALUES (21, 3, 'Ivo Berger', NULL, 'Riverbank', '2023-10-28', 'confirmed');
INSERT INTO enrolments VALUES (22, 3, 'Otto Kovac', 8, 'Old Town', '2023-10-29', 'confirmed');
INSERT INTO enrolments VALUES (23, 9, 'Rita Abbot', 12, 'Westend', '2023-10-30', 'cancelled');
INSERT INTO enrolments VALUES (24, 15, 'Vito Iversen', 6, 'Hillside', '2023-11-26', 'waiting');
INSERT INTO enrolments VALUES (25, 15, 'Fay Dunn', 6, 'Hillside', '2023-12-13', 'confirmed');
INSERT INTO enrolments VALUES (26, 15, 'Tara Dunn', 10, 'Old Town', '2023-12-14', 'confirmed');
INSERT INTO enrolments VALUES (27, 4, 'Wanda Abbot', 11, 'Westend', '2023-12-16', 'cancelled');
INSERT INTO enrolments VALUES (28, 15, 'Fay Castro', 7, 'Hillside', '2024-01-07', 'confirmed');
INSERT INTO enrolments VALUES (29, 10, 'Gus Jansen', NULL, 'Old Town', '2024-01-20', 'waiting');
INSERT INTO enrolments VALUES (30, 11, 'Lola Gomes', 3, 'Riverbank', '2024-02-04', 'confirmed');
INSERT INTO enrolments VALUES (31, 2, 'Nia Farkas', 7, 'Old Town', '2024-02-08', 'confirmed');
INSERT INTO enrolments VALUES (32, 2, 'Lola Novotny', 11, 'Hillside', '2024-02-09', 'confirmed');
INSERT INTO enrolments VALUES (33, 2, 'Gus Meyer', 10, 'Westend', '2024-02-15', 'confirmed');
INSERT INTO enrolments VALUES (34, 10, 'Zeno Meyer', 12, 'Westend', '2024-02-20', 'confirmed');
INSERT INTO enrolments VALUES (35, 10, 'Umi Eklund', NULL, 'Westend', '2024-02-27', 'confirmed');
INSERT INTO enrolments VALUES (36, 2, 'Cleo Farkas', 7, 'Hillside', '2024-02-27', 'cancelled');
INSERT INTO enrolments VALUES (37, 7, 'Quinn Iversen', NULL, 'Hillside', '2024-03-01', 'confirmed');
INSERT INTO enrolments VALUES (38, 2, 'Xaver Dunn', 7, 'Riverbank', '2024-03-04', 'confirmed');
INSERT INTO enrolments VALUES (39, 11, 'Umi Farkas', NULL, NULL, '2024-03-06', 'confirmed');
INSERT INTO enrolments VALUES (40, 2, 'Yara Berger', 8, 'Westend', '2024-03-09', 'confirmed');
INSERT INTO enrolments VALUES (41, 7, 'Tara Abbot', 19, 'Hillside', '2024-03-11', 'waiting');
INSERT INTO enrolments VALUES (42, 2, 'Umi Abbot', 8, 'Hillside', '2024-03-18', 'confirmed');
INSERT INTO enrolments VALUES (43, 7, 'Jade Jansen', 55, 'Old Town', '2024-03-25', 'confirmed');
INSERT INTO enrolments VALUES (44, 7, 'Quinn Gomes', NULL, 'Riverbank', '2024-03-25', 'confirmed');
INSERT INTO enrolments VALUES (45, 2, 'Pia Jansen', 7, 'Hillside', '2024-04-01', 'cancelled');
INSERT INTO enrolments VALUES (46, 2, 'Kai Meyer', 6, 'Westend', '2024-04-02', 'confirmed');
INSERT INTO enrolments VALUES (47, 2, 'Jade Meyer', 9, 'Hillside', '2024-04-04', 'confirmed');
INSERT INTO enrolments VALUES (48, 13, 'Hila Novotny', 73, 'Riverbank', '2024-04-04', 'confirmed');
INSERT INTO enrolments VALUES (49, 7, 'Otto Castro', 40, 'Old Town', '2024-04-07', 'confirmed');
INSERT INTO enrolments VALUES (50, 7, 'Xaver Gomes', 49, 'Riverbank', '2024-04-17', 'confirmed');
INSERT INTO enrolments VALUES (51, 13, 'Gus Berger', 74, 'Riverbank', '2024-04-22', 'confirmed');
INSERT INTO enrolments VALUES (52, 7, 'Xaver Lowe', 25, NULL, '2024-04-26', 'confirmed');
INSERT INTO enrolments VALUES (53, 6, 'Hila Eklund', 72, 'Westend', '2024-05-02', 'confirmed');
INSERT INTO enrolments VALUES (54, 6, 'Wanda Castro', 67, 'Old Town', '2024-05-04', 'confirmed');

INSERT INTO water_tests VALUES (1, 'leisure', '2024-01-05', 0.63, 7.31, 31.6);
INSERT INTO water_tests VALUES (2, 'main', '2024-01-06', 0.91, 7.05, 26.2);
INSERT INTO water_tests VALUES (3, 'teaching', '2024-01-11', 0.25, 7.51, NULL);
INSERT INTO water_tests VALUES (4, 'leisure', '2024-01-18', 0.31, 7.18, NULL);
INSERT INTO water_tests VALUES (5, 'diving', '2024-01-18', 0.26, 7.45, 26.8);
INSERT INTO water_tests VALUES (6, 'teaching', '2024-01-26', 0.91, 6.97, NULL);
INSERT INTO water_tests VALUES (7, 'main', '2024-01-28', 0.68, 7.01, 26.9);
INSERT INTO water_tests VALUES (8, 'teaching', '2024-02-07', 0.64, 7.42, 30.0);
INSERT INTO water_tests VALUES (9, 'main', '2024-02-10', 0.63, 7.6, 26.5);
INSERT INTO water_tests VALUES (10, 'leisure', '2024-02-11', 0.47, 6.91, 31.2);
INSERT INTO water_tests VALUES (11, 'teaching', '2024-02-13', 0.37, 6.84, 31.1);
INSERT INTO water_tests VALUES (12, 'diving', '2024-02-15', 0.39, 7.03, 26.6);
INSERT INTO water_tests VALUES (13, 'main', '2024-02-29', 0.82, 6.8, 26.8);
INSERT INTO water_tests VALUES (14, 'leisure', '2024-03-07', 0.72, 7.13, 32.9);
INSERT INTO water_tests VALUES (15, 'main', '2024-03-14', 0.74, 7.11, 27.3);
INSERT INTO water_tests VALUES (16, 'diving', '2024-03-16', 0.44, 7.61, NULL);
INSERT INTO water_tests VALUES (17, 'main', '2024-03-16', 0.35, 7.49, 27.4);
INSERT INTO water_tests VALUES (18, 'main', '2024-03-18', 0.57, 7.42, 27.2);
INSERT INTO water_tests VALUES (19, 'main', '2024-03-20', 0.41, 7.2, 27.4);
INSERT INTO water_tests VALUES (20, 'teaching', '2024-03-23', 0.34, 7.41, 32.0);
INSERT INTO water_tests VALUES (21, 'leisure', '2024-03-24', 0.51, 7.21, 32.2);
INSERT INTO water_tests VALUES (22, 'main', '2024-03-30', 0.56, 7.44, 27.6);
INSERT INTO water_tests VALUES (23, 'diving', '2024-03-30', 0.66, 7.12, 26.8);
INSERT INTO water_tests VALUES (24, 'teaching', '2024-04-03', 0.75, 7.59, 30.2);
INSERT INTO water_tests VALUES (25, 'teaching', '2024-04-08', 0.95, 7.14, 30.9);
INSERT INTO water_tests VALUES (26, 'leisure', '2024-04-12', 0.87, 7.15, 33.1);
INSERT INTO water_tests VALUES (27, 'leisure', '2024-04-17', 0.8, 7.36, 31.6);
INSERT INTO water_tests VALUES (28, 'leisure', '2024-04-22', 0.3, 6.82, 32.3);
INSERT INTO water_tests VALUES (29, 'leisure', '2024-04-29', 0.95, 7.51, 31.3);
INSERT INTO water_tests VALUES (30, 'main', '2024-05-03', 0.7, 7.18, 27.2);
INSERT INTO water_tests VALUES (31, 'main', '2024-05-04', 0.58, 7.04, NULL);
INSERT INTO water_tests VALUES (32, 'teaching', '2024-05-10', 0.42, 7.08, 31.3);
INSERT INTO water_tests VALUES (33, 'leisure', '2024-05-12', 0.54, 6.97, 33.0);
INSERT INTO water_tests VALUES (34, 'leisure', '2024-05-19', 0.49, 7.52, 31.2);
INSERT INTO water_tests VALUES (35, 'main', '2024-05-26', 0.44, 7.26, 27.6);
INSERT INTO water_tests VALUES (36, 'leisure', '2024-05-28', 0.71, 6.83, 33.4);
INSERT INTO water_tests VALUES (37, 'main', '2024-05-30', 0.54, 7.46, 26.9);
INSERT INTO water_tests VALUES (38, 'teaching', '2024-06-02', 0.56, 7.28, 31.8);
INSERT INTO water_tests VALUES (39, 'teaching', '2024-06-04', 0.49, 7.49, 30.4);
INSERT INTO water_tests VALUES (40, 'diving', '2024-06-06', 0.6, 6.85, 25.9);
INSERT INTO water_tests VALUES (41, 'diving', '2024-06-11', 0.78, 7.23, 26.3);
INSERT INTO water_tests VALUES (42, 'diving', '2024-06-11', 0.38, 6.82, 26.1);
INSERT INTO water_tests VALUES (43, 'leisure', '2024-06-13', 0.4, 7.2, 31.7);
INSERT INTO water_tests VALUES (44, 'main', '2024-06-16', 0.27, 7.27, 26.9);

