# ruff: noqa: SIM905 (a paragraph of words is easier to read and to change than a column of them)
"""Invented people: given and family names that generators combine at random. No real person is meant."""

GIVEN = (
    "Ada Agnes Albin Alma Amadou Amina Anders Anika Anton Arlo Astrid Aurel Bela Benedek Birgit Bram Brigid Callum "
    "Carla Cecil Chandra Ciara Clemens Dagny Dario Delphine Dora Edda Eino Elio Elka Emeka Enid Esme Ewan Fadila "
    "Farid Fenna Finn Flora Gareth Gesa Gita Greta Hadi Hanna Hedda Hiro Ida Ilse Imre Ines Ingrid Isko Ivo Jana "
    "Jarek Jonas Juno Kaito Kamil Karin Keira Kofi Lars Leila Lena Leon Linnea Lorcan Lucia Maarten Mairi Malik Mara "
    "Marek Mei Milan Mina Nadia Nell Nils Noor Odile Olga Omar Oskar Paavo Petra Pilar Priya Quinn Rafael Rana Reza "
    "Rosa Runa Samir Saskia Selma Sigrid Silas Stella Sunniva Tamas Tariq Tessa Thea Tomas Ulla Vera Viktor Wanda "
    "Wilf Xenia Yara Yusuf Zelda Zoltan"
).split()

FAMILY = (
    "Abara Adeyemi Ahlgren Alder Amsel Aronsen Ashdown Baird Balint Barrow Bechtel Bjorklund Blackwood Boateng Brandt "
    "Briar Brookes Calloway Castellan Cernik Corrigan Crane Dahl Danso Delacroix Demir Dorn Drummond Eklund Elmgren "
    "Engel Fairley Falk Farkas Fenwick Ferro Fjord Forsyth Galloway Garrick Gentile Grantham Grieve Haddad Halloran "
    "Hartig Hasegawa Heron Holm Horvath Ibarra Iversen Jansky Joshi Kallas Keating Kimura Kirsch Kovac Krol Lachlan "
    "Larkin Lindqvist Lowell Lund Marchetti Marlow Mbeki Meyrick Mikkola Moreau Nakata Nemeth Nyberg Oakes Obi Okafor "
    "Orlov Osei Palmgren Pascoe Penrose Petrov Quist Radley Rahman Ravel Rhodes Rosso Sandoval Sayer Sefton Silva "
    "Skovgaard Sorley Strand Takeda Tamm Thorne Tolland Ueda Vance Varga Vesely Vogt Wadham Wexford Winther Yilmaz "
    "Yorke Zeller"
).split()
