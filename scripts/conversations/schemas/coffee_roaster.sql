CREATE TABLE cafes (cafe_id INTEGER PRIMARY KEY, name TEXT, country TEXT, opened_on DATE);
CREATE TABLE beans (bean_id INTEGER PRIMARY KEY, name TEXT, origin TEXT, roast TEXT, price_per_kg REAL);
CREATE TABLE orders (order_id INTEGER PRIMARY KEY, cafe_id INTEGER REFERENCES cafes(cafe_id), ordered_on DATE, channel TEXT, status TEXT);
CREATE TABLE order_items (order_id INTEGER REFERENCES orders(order_id), bean_id INTEGER REFERENCES beans(bean_id), kilos INTEGER, PRIMARY KEY (order_id, bean_id));
