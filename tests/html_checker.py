"""A parser that fails a test where a page is malformed."""

import html.parser
import unittest

VOID = {"meta", "link", "img", "br"}
CLOSED_BY_OTHERS = {"tr", "td", "th", "li"}  # their end tags may be left out


class Checker(html.parser.HTMLParser):
    """Fails where a page is malformed, refers to the network, or has a picture without a text."""

    def __init__(self, test: unittest.TestCase, page: str):
        super().__init__()
        self._test, self._open = test, []
        self.feed(page)
        self.close()
        test.assertEqual(self._open, [])
        test.assertNotRegex(page, "https?:(?!//www.w3.org/2000/svg)|@import|url\\(")

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        for name in ("src", "href"):
            self._test.assertNotRegex(given.get(name) or "", "^(//|(?!data:)[a-z]+:)")
        if tag == "img":
            self._test.assertTrue(given["alt"])
        if tag in ("svg", "audio"):
            self._test.assertTrue(
                given.get("aria-label") or given.get("aria-hidden"), self.get_starttag_text()
            )
        if tag not in VOID and tag not in CLOSED_BY_OTHERS:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass  # closed in SVG

    def handle_endtag(self, tag):
        if tag not in CLOSED_BY_OTHERS:
            self._test.assertEqual(self._open.pop(), tag)
