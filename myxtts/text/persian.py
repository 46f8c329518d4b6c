"""Numbers and dates of Persian texts as words; numbers by num2words."""

import re

from num2words import num2words

_JALALI = "فروردین اردیبهشت خرداد تیر مرداد شهریور مهر آبان آذر دی بهمن اسفند".split()
_GREGORIAN = "ژانویه فوریه مارس آوریل مه ژوئن ژوئیه اوت سپتامبر اکتبر نوامبر دسامبر".split()
_MONTHS = "|".join([*_JALALI, *_GREGORIAN, "می", "جولای", "آگوست"])
_NUMBER = r"\d+(?:\.\d+)?"
_MAX_DIGITS = 21


def words_of(text: str) -> str:
    """Return a Persian text with its numbers, in digits of ASCII, as words, as they are spoken.

    Years and days are cardinal and ordinal numbers; dates of digits alone are year/month/day of the
    Iranian calendar, or of the Gregorian one from the year 1700 on. "3-2" is read as two numbers,
    and "2-3" as a range.
    """
    text = re.sub(r"(?<=\d)[٬,](?=\d{3})", "", text)
    text = re.sub(r"\b(\d{4})/(\d{1,2})/(\d{1,2})\b", _date, text)
    text = re.sub(rf"\b(\d{{1,2}})(?= (?:{_MONTHS})\b)", lambda day: _ordinal(day[1]), text)
    text = re.sub(r"\b(\d{1,2}):(\d{2})\b", _time, text)
    text = re.sub(r"\b(\d+)\s?[-–]\s?(\d+)\b", _range, text)
    text = re.sub(r"\b(\d+)\u200c?(?:م|ام)(ین)?\b", lambda m: _ordinal(m[1]) + (m[2] or ""), text)
    text = re.sub(rf"(?<![\w.])[-−](?={_NUMBER})", "منفی ", text)
    return re.sub(_NUMBER, lambda number: _cardinal(number[0]), text)


def _cardinal(number: str) -> str:
    whole, _, fraction = number.partition(".")
    fraction = fraction.rstrip("0")
    # num2words reads 0.05 as 0.5.
    if fraction == "5" and whole.strip("0"):
        return f"{_whole(whole)} و نیم"
    if not fraction:
        return _whole(whole)
    return f"{_whole(whole)} ممیز {_whole(fraction)}"


def _whole(digits: str) -> str:
    """Return a whole number; the zeros in front of one, and long numbers, digit by digit."""
    leading = len(digits) - len(digits.lstrip("0"))
    single = len(digits) if len(digits) > _MAX_DIGITS else min(leading, len(digits) - 1)
    numbers = [*digits[:single], digits[single:]]
    return " ".join(num2words(int(part), lang="fa") for part in filter(None, numbers))


def _ordinal(number: str) -> str:
    words = num2words(int(number), lang="fa", to="ordinal")
    if not words.endswith("یم"):
        return words
    return words.removesuffix("یم") + "ی‌ام"


def _date(date: re.Match) -> str:
    year, month, day = map(int, date.groups())
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return date[0]
    names = _GREGORIAN if year >= 1700 else _JALALI
    return f"{_ordinal(date[3])} {names[month - 1]} {year}"


def _time(time: re.Match) -> str:
    minutes = int(time[2])
    return f"{int(time[1])} و {minutes} دقیقه" if minutes else f"{int(time[1])}"


def _range(pair: re.Match) -> str:
    return f"{pair[1]} تا {pair[2]}" if int(pair[1]) < int(pair[2]) else f"{pair[1]} {pair[2]}"
