# ruff: noqa: SIM905 (a paragraph of words is easier to read and to change than a column of them)
"""Brackwater Scale Models: customers, orders, order lines, payments, products, product lines, staff, offices."""

from __future__ import annotations

from datetime import date

from .kit import Draw, Tables, Value, eighths, later
from .words import FAMILY, GIVEN

OFFICES = [
    ("BGO", "Bergen", "Norway", "+47 5550 0110", date(2004, 3, 1)),
    ("OPO", "Porto", "Portugal", "+351 5550 0120", date(2007, 9, 10)),
    ("ORK", "Cork", "Ireland", "+353 5550 0130", date(1998, 5, 4)),
    ("GDN", "Gdansk", "Poland", None, date(2012, 1, 16)),
    ("YHZ", "Halifax", "Canada", "+1 5550 0150", date(2009, 6, 22)),
    ("NGO", "Nagoya", "Japan", "+81 5550 0160", date(2015, 4, 1)),
    ("DUD", "Dunedin", "New Zealand", None, date(2024, 11, 4)),  # new: nobody works there yet
]
LINES = [
    ("AIR", "Aircraft", 24),
    ("CAR", "Classic Cars", 32),
    ("TRK", "Trucks and Vans", 12),
    ("SHP", "Ships", 18),
    ("RAI", "Railway", 28),
    ("BUS", "Buses and Trams", None),
    ("SPC", "Spacecraft", 8),
    ("DIO", "Diorama Scenery", None),  # announced: no products yet
]
THINGS = {
    "AIR": ("Biplane", "Seaplane", "Glider", "Airliner", "Crop Duster", "Mail Plane"),
    "CAR": ("Roadster", "Saloon", "Coupe", "Estate Car", "Cabriolet", "Rally Car"),
    "TRK": ("Flatbed", "Tanker", "Delivery Van", "Tow Truck", "Dump Truck"),
    "SHP": ("Tugboat", "Schooner", "Ferry", "Trawler", "Paddle Steamer", "Lightship"),
    "RAI": ("Steam Engine", "Railcar", "Shunter", "Dining Coach", "Snow Plough"),
    "BUS": ("Tram", "Trolleybus", "Double Decker", "School Bus"),
    "SPC": ("Lander", "Orbiter", "Rover"),
}
COUNTS = {"AIR": 20, "CAR": 28, "TRK": 13, "SHP": 17, "RAI": 19, "BUS": 8, "SPC": 5}
ADJECTIVES = ("Harbour", "Alpine", "Northern", "Silver", "Midland", "Coastal", "Imperial", "Royal", "Prairie", "Storm")
MAKERS = ("Tinwhistle", "Kestrel Kits", "Oak & Rivet", "Miniatura", "Fjellbo", "Hobbywerk")
SCALES = {
    "AIR": ("1:72", "1:48", "1:144"), "CAR": ("1:24", "1:18", "1:43"), "TRK": ("1:24", "1:43"),
    "SHP": ("1:350", "1:144", "1:72"), "RAI": ("1:87", "1:43"), "BUS": ("1:43", "1:87"), "SPC": ("1:144", "1:72"),
}  # fmt: skip
TOWNS = {
    "Norway": ("Bergen", "Stavanger", "Tromso"), "Portugal": ("Porto", "Braga", "Faro"),
    "Ireland": ("Cork", "Galway", "Sligo"), "Poland": ("Gdansk", "Lublin", "Torun"),
    "Canada": ("Halifax", "Moncton", "Guelph"), "Japan": ("Nagoya", "Kanazawa"),
    "Germany": ("Bremen", "Kassel", "Halle"), "Chile": ("Valdivia", "Iquique"), "Kenya": ("Kisumu",),
    "France": ("Nantes", "Tours", "Metz"),
}  # fmt: skip
TRADE = ("Models", "Hobbies", "Toys & Trains", "Miniatures", "Kit Shop", "Collectors", "Workshop", "Bros")
SHOP = (
    "Acorn Anvil Atlas Beacon Birch Bramble Brasswork Cedar Clockwork Cobalt Compass Copper Crown Driftwood Ember "
    "Falcon Foxglove Gable Gearbox Granite Harbour Hazel Helix Heron Juniper Keystone Lantern Linden Magpie Marble "
    "Meridian Nimbus Orchard Otter Pelican Piston Puffin Quartz Raven Ridge Saffron Spindle Sprocket Tamarind Thimble "
    "Thistle Timber Tundra Turnstile Walnut"
).split()
METHODS = {"bank transfer": 6, "card": 3, "cheque": 1}
REMARKS = ("deliver to rear entrance", "gift wrap", "call before delivery", "partial delivery accepted", "fragile")
TODAY = date(2024, 12, 31)


def tables(draw: Draw) -> Tables:
    staff = _employees(draw)
    products = _products(draw)
    customers = _customers(draw, [row for row in staff if row[3] == "Sales Representative"])
    orders, lines = _orders(draw, customers, products)
    return {
        "offices": [(*row[:4], row[4].isoformat()) for row in OFFICES],
        "employees": staff,
        "product_lines": list(LINES),
        "products": products,
        "customers": customers,
        "order": orders,
        "order_lines": lines,
        "payments": _payments(draw, customers, orders, lines),
    }


def _employees(draw: Draw) -> list[tuple[Value, ...]]:
    """A managing director, office managers under her, and the offices' staff under those."""
    rows: list[tuple[Value, ...]] = []
    taken: set[str] = set()

    def hire(title: str, office: str, manager: int | None, first: date) -> int:
        number = 1001 + len(rows)
        given, family = draw.name(GIVEN[:60], FAMILY[:70], taken).split()
        hired = draw.day(first, date(2023, 12, 1)) if manager else first
        rows.append((number, given, family, title, office, manager, hired.isoformat()))
        return number

    director = hire("Managing Director", "ORK", None, date(1998, 5, 4))
    hire("Finance Officer", "ORK", director, date(2003, 1, 1))
    for office, _, _, _, opened in OFFICES[:-1]:
        manager = hire("Office Manager", office, director, opened)
        for _ in range(draw.between(2, 5)):
            hire("Sales Representative", office, manager, opened)
        if draw.chance(0.7):
            hire("Warehouse Clerk", office, manager, opened)
    return rows


def _products(draw: Draw) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for line, count in COUNTS.items():
        titles = [f"{first} {thing}" for thing in THINGS[line] for first in ADJECTIVES]
        for number, title in enumerate(draw.some(titles, count), start=1):
            cost = eighths(max(4.5, draw.bell(32 if line in ("SHP", "RAI") else 22, 14)), 0.25)
            price = eighths(cost * draw.bell(1.75, 0.25), 0.25)
            released = draw.day(date(2016, 1, 1), date(2024, 6, 30))
            gone = later(released, draw.between(300, 2400)) if draw.chance(0.25) else None
            if gone and gone > TODAY:
                gone = None
            stock = 0 if gone and draw.chance(0.6) else draw.between(0, 420)
            rows.append(
                (f"{line}-{number:03d}", title, line, draw.pick(SCALES[line]), draw.pick(MAKERS), stock, cost, price,
                 released.isoformat(), gone.isoformat() if gone else None)
            )  # fmt: skip
    return rows


def _customers(draw: Draw, reps: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    weights = dict(zip(TOWNS, (16, 12, 15, 11, 14, 9, 13, 6, 3, 12), strict=True))
    busy = [row[0] for row in reps[:-3]]  # the last three representatives have no customers yet
    contacts: set[str] = set()
    rows: list[tuple[Value, ...]] = []
    for number, shop in enumerate([*SHOP, *draw.some(SHOP, 45)], start=1):
        company = f"{shop} {draw.pick(TRADE)}"
        while any(row[1] == company for row in rows):
            company = f"{shop} {draw.pick(TRADE)}"
        country = draw.weighted(weights)
        status = draw.weighted({"active": 80, "on hold": 12, "closed": 8})
        limit = None if draw.chance(0.12) else draw.between(4, 60) * 500
        rep = None if draw.chance(0.15) else draw.pick(busy)
        created = draw.day(date(2017, 1, 1), date(2024, 10, 31))
        rows.append((number, company, draw.name(GIVEN, FAMILY, contacts), draw.pick(TOWNS[country]), country, status,
                     limit, rep, created.isoformat()))  # fmt: skip
    return rows


def _orders(
    draw: Draw, customers: list[tuple[Value, ...]], products: list[tuple[Value, ...]]
) -> tuple[list[tuple[Value, ...]], list[tuple[Value, ...]]]:
    """Customers order at different rates; one in eight never ordered; some products were never ordered."""
    sellable = [row for row in products if not str(row[0]).endswith("4")]
    rate = {row[0]: draw.weighted({0: 12, 3: 30, 7: 40, 14: 15, 24: 3}) for row in customers}
    placed: list[tuple[date, int]] = []
    for row in customers:
        first = max(date.fromisoformat(str(row[8])), date(2021, 1, 1))
        count = rate[row[0]] and draw.between(1, rate[row[0]] * 3 // 2)
        placed += [(draw.day(first, date(2024, 12, 28)), int(str(row[0]))) for _ in range(count)]
    orders: list[tuple[Value, ...]] = []
    lines: list[tuple[Value, ...]] = []
    for number, (day, customer) in enumerate(sorted(placed), start=50001):
        due = later(day, draw.between(5, 21))
        recent = (TODAY - day).days < 14
        status = draw.weighted({"open": 6, "packed": 3} if recent else {"shipped": 88, "cancelled": 6, "disputed": 4})
        shipped = later(day, draw.weighted({1: 3, 3: 8, 6: 8, 10: 4, 16: 3, 24: 1}) + draw.between(0, 3))
        was_shipped = status in ("shipped", "disputed") and shipped <= TODAY
        if status == "shipped" and not was_shipped:
            status = "packed"
        items = draw.some(sellable, draw.weighted({1: 20, 2: 25, 3: 22, 4: 15, 6: 10, 9: 5}))
        orders.append((number, customer, day.isoformat(), due.isoformat(), shipped.isoformat() if was_shipped else None,
                       status, len(items), draw.pick(REMARKS) if draw.chance(0.2) else None))  # fmt: skip
        for line_no, item in enumerate(items, start=1):
            discount = draw.weighted({1.0: 50, 0.95: 25, 0.9: 15, 0.8: 8})
            price = eighths(float(str(item[7])) * discount, 0.25)
            lines.append((number, line_no, item[0], draw.weighted({2: 3, 5: 4, 10: 5, 20: 3, 40: 1}), price))
    return orders, lines


def _payments(
    draw: Draw, customers: list[tuple[Value, ...]], orders: list[tuple[Value, ...]], lines: list[tuple[Value, ...]]
) -> list[tuple[Value, ...]]:
    """Most shipped orders are paid in one or two parts; some customers have not paid anything."""
    totals: dict[Value, float] = {}
    for order_id, _, _, qty, price in lines:
        totals[order_id] = totals.get(order_id, 0.0) + int(str(qty)) * float(str(price))
    silent = set(draw.some([row[0] for row in customers], 12))
    rows: list[tuple[Value, ...]] = []
    for order_id, customer, _, _, shipped, *_ in orders:
        if not shipped or customer in silent or draw.chance(0.18):
            continue
        whole = totals[order_id]
        first = whole if draw.chance(0.8) else eighths(whole / 2, 0.25)
        for part in filter(None, (first, whole - first)):
            paid = min(later(date.fromisoformat(str(shipped)), draw.between(2, 70)), TODAY)
            reference = f"P{len(rows) + 7001}"
            rows.append((customer, reference, paid.isoformat(), part, draw.weighted(METHODS)))
    return rows
