-- Harwick University registry: departments, programmes, courses and sections, students, enrolments and grades.
CREATE TABLE departments (
    dept_code TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    building TEXT NOT NULL,
    annual_budget INTEGER NOT NULL
);
CREATE TABLE instructors (
    instructor_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    dept_code TEXT NOT NULL REFERENCES departments (dept_code),
    rank TEXT NOT NULL,
    salary INTEGER NOT NULL,
    hired_on TEXT NOT NULL,
    office TEXT
);
CREATE TABLE programmes (
    programme_code TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    degree TEXT NOT NULL,
    dept_code TEXT NOT NULL REFERENCES departments (dept_code),
    credits_required INTEGER NOT NULL
);
CREATE TABLE students (
    student_id INTEGER PRIMARY KEY,
    first_name TEXT NOT NULL,
    last_name TEXT NOT NULL,
    programme_code TEXT NOT NULL REFERENCES programmes (programme_code),
    advisor_id INTEGER REFERENCES instructors (instructor_id),
    entry_year INTEGER NOT NULL,
    birth_date TEXT NOT NULL,
    country TEXT NOT NULL,
    status TEXT NOT NULL
);
CREATE TABLE courses (
    course_id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    dept_code TEXT NOT NULL REFERENCES departments (dept_code),
    credits INTEGER NOT NULL,
    level INTEGER NOT NULL
);
CREATE TABLE course_prerequisites (
    course_id TEXT NOT NULL REFERENCES courses (course_id),
    required_course_id TEXT NOT NULL REFERENCES courses (course_id),
    PRIMARY KEY (course_id, required_course_id)
);
CREATE TABLE terms (
    term_code TEXT PRIMARY KEY,
    label TEXT NOT NULL,
    starts_on TEXT NOT NULL,
    ends_on TEXT NOT NULL
);
CREATE TABLE sections (
    course_id TEXT NOT NULL REFERENCES courses (course_id),
    term_code TEXT NOT NULL REFERENCES terms (term_code),
    section_no INTEGER NOT NULL,
    instructor_id INTEGER REFERENCES instructors (instructor_id),
    room TEXT,
    weekday TEXT NOT NULL,
    capacity INTEGER NOT NULL,
    enrolled INTEGER NOT NULL,
    PRIMARY KEY (course_id, term_code, section_no)
);
CREATE TABLE grade_scale (
    grade TEXT PRIMARY KEY,
    points REAL NOT NULL,
    passing INTEGER NOT NULL
);
CREATE TABLE enrolments (
    student_id INTEGER NOT NULL REFERENCES students (student_id),
    course_id TEXT NOT NULL,
    term_code TEXT NOT NULL,
    section_no INTEGER NOT NULL,
    status TEXT NOT NULL,
    grade TEXT REFERENCES grade_scale (grade),
    enrolled_on TEXT NOT NULL,
    PRIMARY KEY (student_id, course_id, term_code),
    FOREIGN KEY (course_id, term_code, section_no) REFERENCES sections (course_id, term_code, section_no)
);
CREATE TABLE scholarships (
    scholarship_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    sponsor TEXT,
    yearly_amount INTEGER NOT NULL
);
CREATE TABLE awards (
    student_id INTEGER NOT NULL REFERENCES students (student_id),
    scholarship_id INTEGER NOT NULL REFERENCES scholarships (scholarship_id),
    awarded_year INTEGER NOT NULL,
    PRIMARY KEY (student_id, scholarship_id, awarded_year)
);
