"""What a checkout does, recorded and compared: the modules behind ``scripts/record_behaviour.py``."""
