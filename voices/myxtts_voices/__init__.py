"""Voices by name: index.json, and a folder for each, as `myxtts publish` writes it."""
