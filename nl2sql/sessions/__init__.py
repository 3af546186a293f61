"""Conversations: turns and their stores, and follow-up questions made whole before a controller sees them."""
