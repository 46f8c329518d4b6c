"""Checks of the languages of a corpus, by its metadata alone."""

from collections.abc import Sequence

from myxtts.data.metadata_file import Row, Rows
from myxtts.errors import DataError
from myxtts.text import espeak
from myxtts.text.languages import (
    canonical_code,
    languages_of,
    letters_by_script,
    names_of,
    scripts_of,
)

# Loan words, names and acronyms stay far below: the prose of a technical Persian text about
# software has 11 % Latin letters. Texts of another language have nearly 100 %, and 30 % is a corpus
# of two languages.
MAX_FOREIGN_LETTERS = 0.3
EXAMPLES = 8  # languages that are suggested


def check_languages(corpora: Sequence[Rows], max_rejected: float) -> None:
    """Check that espeak-ng speaks the languages of most rows, and that their texts are in a script
    of the language.

    Args:
        corpora: training and validation rows of a run.
        max_rejected: fraction of rows that may have an unknown language; they are rejected one by
            one.

    Raises:
        DataError: too many rows have an unknown language, or texts are in a script of other
            languages.
    """
    rows_of: dict[str, list[tuple[Rows, Row]]] = {}
    for corpus in corpora:
        for row in corpus.rows:
            rows_of.setdefault(row.language, []).append((corpus, row))
    total = sum(map(len, rows_of.values()))
    for language, located in rows_of.items():
        try:
            espeak.check_language(language)
        except DataError as error:
            if len(located) > max_rejected * total:
                raise DataError(
                    f"{error} {len(located)} of {total} rows have this language."
                    f" {_where(located[0])}"
                ) from None
        else:
            _check_script(language, located)


def with_canonical_codes(rows: Rows, kept: Sequence[str] = ()) -> Rows:
    """Return the rows with one spelling of each language code, but for the codes in `kept`, of an
    earlier run.
    """
    languages = {row.language for row in rows.rows}
    codes = {
        language: language if language in kept else canonical_code(language)
        for language in languages
    }
    return rows._replace(
        rows=tuple(row._replace(language=codes[row.language]) for row in rows.rows)
    )


def _check_script(language: str, located: Sequence[tuple[Rows, Row]]) -> None:
    letters, scripts = letters_by_script(row.text for _, row in located), scripts_of(language)
    foreign = {script: count for script, count in letters.items() if script not in scripts}
    share = sum(foreign.values()) / max(letters.total(), 1)
    if not scripts or share <= MAX_FOREIGN_LETTERS:
        return
    found = max(foreign, key=lambda script: foreign[script])
    example = max(located, key=lambda item: letters_by_script([item[1].text])[found])
    raise DataError(
        f"language {language!r} was requested, which is written in {names_of(scripts)} letters, but"
        f" {100 * share:.0f} % of the letters in its {len(located)} row{'s' * (len(located) > 1)}"
        f" are not ({100 * foreign[found] / letters.total():.0f} % are {names_of([found])})."
        f" {_where(example)} {_to_do(languages_of(found))} If the rows have several languages, add"
        " a language column. The text front end 'characters' accepts any script."
    )


def _where(located: tuple[Rows, Row]) -> str:
    rows, row = located
    text = row.text if len(row.text) <= 60 else f"{row.text[:59]}…"
    return f"An example is line {row.line} of {rows.metadata}: {text!r}."


def _to_do(languages: Sequence[str]) -> str:
    if not languages:
        return "Give the language of the texts with --language."
    more = " or another one" if len(languages) > EXAMPLES else ""
    return (
        f"Give the language of the texts with --language: {', '.join(languages[:EXAMPLES])}{more}."
    )
