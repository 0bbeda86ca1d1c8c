"""Releases, wheels, and what is installed here."""
