"""What ``plant_faults.py`` is made of: the list of faults, and the copies in which they are planted."""
