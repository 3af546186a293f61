CREATE TABLE owners (owner_id INTEGER PRIMARY KEY, name TEXT, city TEXT, joined_on DATE);
CREATE TABLE pets (pet_id INTEGER PRIMARY KEY, owner_id INTEGER REFERENCES owners(owner_id), name TEXT, species TEXT, breed TEXT, born_on DATE, weight_kg REAL);
CREATE TABLE vets (vet_id INTEGER PRIMARY KEY, name TEXT, specialty TEXT, hired_on DATE);
CREATE TABLE visits (visit_id INTEGER PRIMARY KEY, pet_id INTEGER REFERENCES pets(pet_id), vet_id INTEGER REFERENCES vets(vet_id), visited_on DATE, reason TEXT, fee REAL, status TEXT);
