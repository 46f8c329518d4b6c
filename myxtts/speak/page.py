"""The page that speaks in a browser."""

from pathlib import Path

PAGE = Path(__file__).with_name("page.html")
