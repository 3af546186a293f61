"""A second, independent evaluation of structured queries, which ``vizql_reference.py`` holds the compiler to."""
