-- Brackwater Scale Models: a wholesaler that sells model kits to shops.
CREATE TABLE offices (
    office_code TEXT PRIMARY KEY,
    city TEXT NOT NULL,
    country TEXT NOT NULL,
    phone TEXT,
    opened_on TEXT NOT NULL
);
CREATE TABLE employees (
    employee_id INTEGER PRIMARY KEY,
    given_name TEXT NOT NULL,
    family_name TEXT NOT NULL,
    job_title TEXT NOT NULL,
    office_code TEXT NOT NULL REFERENCES offices (office_code),
    manager_id INTEGER REFERENCES employees (employee_id),
    hired_on TEXT NOT NULL
);
CREATE TABLE product_lines (
    line_code TEXT PRIMARY KEY,
    label TEXT NOT NULL,
    catalogue_pages INTEGER
);
CREATE TABLE products (
    sku TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    line_code TEXT NOT NULL REFERENCES product_lines (line_code),
    scale TEXT NOT NULL,
    maker TEXT NOT NULL,
    stock_qty INTEGER NOT NULL,
    unit_cost REAL NOT NULL,
    list_price REAL NOT NULL,
    released_on TEXT NOT NULL,
    discontinued_on TEXT
);
CREATE TABLE customers (
    customer_id INTEGER PRIMARY KEY,
    company TEXT NOT NULL,
    contact_name TEXT NOT NULL,
    town TEXT NOT NULL,
    country TEXT NOT NULL,
    status TEXT NOT NULL,
    credit_limit INTEGER,
    account_rep_id INTEGER REFERENCES employees (employee_id),
    created_on TEXT NOT NULL
);
CREATE TABLE "order" (
    order_id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (customer_id),
    placed_on TEXT NOT NULL,
    due_on TEXT NOT NULL,
    shipped_on TEXT,
    status TEXT NOT NULL,
    line_count INTEGER NOT NULL,
    remark TEXT
);
CREATE TABLE order_lines (
    order_id INTEGER NOT NULL REFERENCES "order" (order_id),
    line_no INTEGER NOT NULL,
    sku TEXT NOT NULL REFERENCES products (sku),
    qty INTEGER NOT NULL,
    unit_price REAL NOT NULL,
    PRIMARY KEY (order_id, line_no)
);
CREATE TABLE payments (
    customer_id INTEGER NOT NULL REFERENCES customers (customer_id),
    reference TEXT NOT NULL,
    paid_on TEXT NOT NULL,
    amount REAL NOT NULL,
    method TEXT NOT NULL,
    PRIMARY KEY (customer_id, reference)
);
