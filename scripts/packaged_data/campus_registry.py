"""Harwick University registry: departments, programmes, courses and sections, students, enrolments and grades."""

from __future__ import annotations

from datetime import date

from .kit import Draw, Tables, Value, later
from .words import FAMILY, GIVEN

DEPARTMENTS = [
    ("BIO", "Biology", "Linden Hall", 1850000),
    ("CSC", "Computer Science", "Tower East", 2400000),
    ("ECO", "Economics", "Merchant House", 1320000),
    ("HIS", "History", "Old Library", 690000),
    ("MAT", "Mathematics", "Tower East", 1125000),
    ("MUS", "Music", "Chapel Court", 540000),
    ("PHI", "Philosophy", "Old Library", 410000),
    ("OCE", "Ocean Studies", "Pier Building", 260000),  # founded, but without courses so far
]
PROGRAMMES = [
    ("BSC-BIO", "Biology", "BSc", "BIO", 180), ("MSC-ECL", "Ecology", "MSc", "BIO", 120),
    ("BSC-CSC", "Computer Science", "BSc", "CSC", 180), ("MSC-DAT", "Data Engineering", "MSc", "CSC", 135),
    ("BSC-ECO", "Economics", "BSc", "ECO", 180), ("BA-HIS", "History", "BA", "HIS", 180),
    ("BSC-MAT", "Mathematics", "BSc", "MAT", 180), ("MSC-STA", "Statistics", "MSc", "MAT", 120),
    ("BA-MUS", "Music", "BA", "MUS", 180), ("BA-PHI", "Philosophy", "BA", "PHI", 180),
    ("MSC-OCE", "Ocean Policy", "MSc", "OCE", 120),
]  # fmt: skip
POPULAR = dict(zip((row[0] for row in PROGRAMMES), (14, 5, 22, 9, 15, 9, 10, 5, 5, 6, 0), strict=True))
COURSES = {
    "BIO": "Cell Biology|Genetics|Plant Science|Ecology|Marine Life|Evolution|Field Methods",
    "CSC": "Programming Basics|Data Structures|Operating Systems|Databases|Computer Networks|Compilers|Machine Learning"
    "|Software Design|Robotics",
    "ECO": "Microeconomics|Macroeconomics|Econometrics|Game Theory|Labour Economics|Public Finance",
    "HIS": "Ancient Worlds|Medieval Towns|Age of Sail|Modern Europe|Oral History|History of Science",
    "MAT": "Calculus|Linear Algebra|Probability|Real Analysis|Number Theory|Statistics|Graph Theory",
    "MUS": "Harmony|Counterpoint|Music History|Choir|Sound Recording",
    "PHI": "Logic|Ethics|Theory of Knowledge|Philosophy of Mind|Aesthetics",
}
TERMS = [
    ("22F", "Autumn 2022", date(2022, 9, 5), date(2022, 12, 16)),
    ("23S", "Spring 2023", date(2023, 1, 16), date(2023, 5, 12)),
    ("23F", "Autumn 2023", date(2023, 9, 4), date(2023, 12, 15)),
    ("24S", "Spring 2024", date(2024, 1, 15), date(2024, 5, 10)),
    ("24F", "Autumn 2024", date(2024, 9, 2), date(2024, 12, 13)),  # still running: no grades yet
]
GRADES = [("A", 4.0, 1), ("B", 3.0, 1), ("C", 2.0, 1), ("D", 1.0, 1), ("F", 0.0, 0)]
COUNTRIES = {
    "Norway": 8,
    "India": 9,
    "Ghana": 6,
    "Brazil": 6,
    "United Kingdom": 44,
    "China": 8,
    "Poland": 6,
    "Ireland": 9,
}
RANKS = {"Lecturer": 5, "Senior Lecturer": 4, "Reader": 2, "Professor": 3}
BASE_PAY = {"Lecturer": 41000, "Senior Lecturer": 50000, "Reader": 59000, "Professor": 74000}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
SCHOLARSHIPS = [
    (1, "Harwick Merit Award", "Harwick Alumni Fund", 3000), (2, "First Generation Grant", None, 4500),
    (3, "Tidewater Science Prize", "Tidewater Energy", 2500),
    (4, "Choral Scholarship", "Friends of Chapel Court", 1200),
    (5, "Global Bridge Bursary", "City of Harwick", 6000), (6, "Women in Computing", "Lumen Software", 5000),
    (7, "Founders Medal", None, 8000),
]  # fmt: skip


def tables(draw: Draw) -> Tables:
    instructors = _instructors(draw)
    students = _students(draw, instructors)
    courses, required = _courses(draw)
    sections = _sections(draw, courses, instructors)
    enrolments = _enrolments(draw, students, courses, sections)
    counts: dict[tuple[Value, ...], int] = {}
    for row in enrolments:
        counts[row[1:4]] = counts.get(row[1:4], 0) + (row[4] != "dropped")
    return {
        "departments": list(DEPARTMENTS),
        "instructors": instructors,
        "programmes": list(PROGRAMMES),
        "students": students,
        "courses": courses,
        "course_prerequisites": required,
        "terms": [(code, label, first.isoformat(), last.isoformat()) for code, label, first, last in TERMS],
        "sections": [(*row, counts.get(row[:3], 0)) for row in sections],
        "grade_scale": list(GRADES),
        "enrolments": enrolments,
        "scholarships": list(SCHOLARSHIPS),
        "awards": _awards(draw, students),
    }


def _instructors(draw: Draw) -> list[tuple[Value, ...]]:
    taken: set[str] = set()
    rows: list[tuple[Value, ...]] = []
    for dept, count in (
        ("BIO", 8),
        ("CSC", 11),
        ("ECO", 7),
        ("HIS", 6),
        ("MAT", 8),
        ("MUS", 4),
        ("PHI", 4),
        ("OCE", 1),
    ):
        for _ in range(count):
            rank = draw.weighted(RANKS)
            pay = BASE_PAY[rank] + 250 * draw.between(0, 34)
            office = (
                f"{dept[0]}{draw.between(1, 4)}{draw.between(0, 2)}{draw.between(1, 9)}" if draw.chance(0.85) else None
            )
            hired = draw.day(date(1994, 9, 1), date(2023, 9, 1))
            rows.append((11 + len(rows), draw.name(GIVEN, FAMILY, taken), dept, rank, pay, hired.isoformat(), office))
    return rows


def _students(draw: Draw, instructors: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    dept_of = {row[0]: row[3] for row in PROGRAMMES}
    taken: set[str] = set()
    rows: list[tuple[Value, ...]] = []
    for number in range(420):
        programme = draw.weighted(POPULAR)
        advisors = [row[0] for row in instructors if row[2] == dept_of[programme]][:-1]  # the last one advises nobody
        advisor = None if draw.chance(0.1) else draw.pick(advisors)
        year = draw.between(2020, 2024)
        older = 22 if programme.startswith("MSC") else 18
        born = draw.day(date(year - older - 3, 1, 1), date(year - older, 8, 31))
        first, last = draw.name(GIVEN, FAMILY, taken).split()
        status = draw.weighted({"enrolled": 82, "on leave": 6, "withdrawn": 6, "graduated": 12 if year < 2022 else 0})
        rows.append((30001 + number, first, last, programme, advisor, year, born.isoformat(),
                     draw.weighted(COUNTRIES), status))  # fmt: skip
    return rows


def _courses(draw: Draw) -> tuple[list[tuple[Value, ...]], list[tuple[Value, ...]]]:
    courses: list[tuple[Value, ...]] = []
    required: list[tuple[Value, ...]] = []
    for dept, names in COURSES.items():
        codes: list[str] = []
        for number, title in enumerate(names.split("|")):
            level = 100 * (1 + number * 4 // len(names.split("|")))
            code = f"{dept}{level + 5 * (number % 3) + number}"
            courses.append((code, title, dept, draw.weighted({5: 3, 10: 6, 15: 2}), level))
            needs = draw.some(codes, min(len(codes), draw.weighted({0: 3, 1: 5, 2: 3}))) if level > 100 else []
            required += [(code, need) for need in sorted(needs)]
            codes.append(code)
    named = {str(row[1]): row[0] for row in courses}
    required += [(named["Machine Learning"], named["Probability"]), (named["Econometrics"], named["Statistics"]),
                 (named["Robotics"], named["Linear Algebra"])]  # fmt: skip
    return courses, sorted(set(required), key=str)


def _sections(
    draw: Draw, courses: list[tuple[Value, ...]], instructors: list[tuple[Value, ...]]
) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for term, *_ in TERMS:
        for course, title, dept, _, level in courses:
            if title == "Aesthetics" or draw.chance(0.3 if int(str(level)) > 200 else 0.12):
                continue
            staff = [row[0] for row in instructors if row[2] == dept][1:]  # the first one does not teach
            for number in range(1, 1 + draw.weighted({1: 6, 2: 3 if level == 100 else 1})):
                room = f"{draw.pick('ABCD')}{draw.between(101, 112)}" if draw.chance(0.9) else None
                teacher = draw.pick(staff) if draw.chance(0.93) else None
                rows.append((course, term, number, teacher, room, draw.pick(DAYS), draw.pick((12, 16, 20, 24, 30))))
    return rows


def _enrolments(
    draw: Draw,
    students: list[tuple[Value, ...]],
    courses: list[tuple[Value, ...]],
    sections: list[tuple[Value, ...]],
) -> list[tuple[Value, ...]]:
    """Students take courses of their own department more often than others; a full section takes no more."""
    dept_of = {row[0]: row[3] for row in PROGRAMMES}
    home = {row[0]: row[2] for row in courses}
    left = {row[:3]: int(str(row[6])) for row in sections}
    years = {code: int(label[-4:]) for code, label, *_ in TERMS}
    start = {code: first for code, _, first, _ in TERMS}
    rows: list[tuple[Value, ...]] = []
    for student in students:
        seen: set[Value] = set()
        idle = student[8] != "enrolled" and draw.chance(0.4)
        for term in years:
            if (
                idle
                or int(str(student[5])) > years[term]
                or (term.endswith("S") and int(str(student[5])) == years[term])
            ):
                continue
            taken: set[Value] = set()
            open_now = [row for row in sections if row[1] == term and left[row[:3]] and row[0] not in seen]
            own = [row for row in open_now if home[row[0]] == dept_of[str(student[3])]]
            for _ in range(draw.weighted({0: 1, 1: 3, 2: 4, 3: 3})):
                pool = own if own and draw.chance(0.75) else open_now
                section = draw.pick(pool)
                if section[0] in taken or not left[section[:3]]:
                    continue
                taken.add(section[0])
                status = "active" if term == "24F" else "completed"
                status = "dropped" if draw.chance(0.07) else status
                left[section[:3]] -= status != "dropped"
                grade = draw.weighted({"A": 22, "B": 33, "C": 25, "D": 10, "F": 8}) if status == "completed" else None
                day = later(start[term], -draw.between(1, 40)).isoformat()
                if status != "dropped" and grade != "F":  # else it may be taken again in a later term
                    seen.add(section[0])
                rows.append((student[0], *section[:3], status, grade, day))
    return rows


def _awards(draw: Draw, students: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    found = set()
    for student in draw.some(students, 85):
        for year in range(max(2021, int(str(student[5]))), 2025):
            if draw.chance(0.45):
                found.add((student[0], draw.weighted({1: 9, 2: 6, 3: 5, 4: 2, 5: 4, 6: 3}), year))
    return sorted(found, key=lambda award: (award[2], award[0], award[1]))
