"""Texts: errors worded for the caller, names that may be meant, files that a user gives."""
