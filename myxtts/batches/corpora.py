"""Load the training corpus and the validation corpus of a run.

What comes in are the settings. On the main thread, before the devices are used, `load_corpora`
reads the rows of the metadata, checks their languages, builds a manifest of the usable rows (from a
cache, if the corpus is unchanged), reports the rejected ones, and plans the batches. What goes out
are two corpora, each with manifest and plan, and their common vocabulary.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.base.errors import ConfigError, DataError
from myxtts.base.files import make_folder
from myxtts.batches.plan import Plan, bucket_bounds
from myxtts.config.schema import Config
from myxtts.corpus.build import (
    UNKNOWN_LANGUAGE,
    UNKNOWN_SYMBOL,
    build_manifest,
    frontend_of,
    report_rejected,
)
from myxtts.corpus.demo_corpus import make_demo_corpus
from myxtts.corpus.layouts import leave_out, read_rows
from myxtts.corpus.manifest import LengthRule, Manifest, Vocabulary
from myxtts.corpus.rows import RejectedRow, Row, Rows, RowTuple
from myxtts.corpus.texts import TeacherRows, read_lines, read_texts, teacher_row_count
from myxtts.text import normalisers
from myxtts.text.frontend import TextFrontend
from myxtts.text.languages import letters_by_script, names_of, scripts_of

DEMO_FOLDER = Path("data/demo")
# Small corpora lack symbols in all but the held-out utterances. This was so in 76 % of 400 random
# corpora of 5 demo sentences, in 20 % with 10 sentences, in 6 % with 20, and in none with 30.
SPARE_UTTERANCES = 30
# Loan words, names and acronyms stay far below: the prose of a technical Persian text about
# software has 11 % Latin letters. Texts of another language have nearly 100 %, and a share of 30 %
# means a corpus of two languages.
MAX_FOREIGN_LETTERS = 0.3
TRIED_TEXTS = 100  # of each language, before the corpus is read

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """A manifest and the plan of its batches, and which rows of them a teacher speaks."""

    manifest: Manifest
    plan: Plan
    teacher_rows: TeacherRows | None = None


# Mistakes are found before long work: first in the file of --texts, then in the rows, then in their
# languages by a few texts, and only then the manifests are built, which opens every file that no
# cache knows. The training manifest comes first, because it makes the vocabulary. Held-out rows may
# only use symbols of it. Rejected rows of both are reported together, in one list with all reasons.
# Plans come last: they need the lengths and token counts of the manifests.
def load_corpora(
    config: Config,
    folder: Path,
    length_rule: LengthRule | None,
    known: Vocabulary | None = None,
    replicas: int = 1,
    frontend: TextFrontend | None = None,
    shares: Sequence[float] = (),
) -> tuple[Corpus, Corpus | None, Vocabulary]:
    """Load the training corpus and the validation corpus, if any, with a common vocabulary.

    The folder gets the cached manifests and rejected.csv. `length_rule` is None for a task that
    needs no texts. `known` is the vocabulary of the run that this one starts from. It is extended
    unless there is a teacher. `replicas` share each training step, in proportion to `shares`.
    `frontend` is by default as the settings say. Raises DataError or ConfigError if a corpus, the
    folder, a share or the teacher's fraction cannot be used.
    """
    data = config.data
    frontend = frontend or frontend_of(data)
    if config.teacher.texts is not None and config.teacher.teacher_fraction:
        # A mistake there is found before the corpus is read, which may take long.
        read_lines(Path(config.teacher.texts))
    needs_text = length_rule is not None
    train_rows, validation_rows, malformed, excluded = _rows_of(config, needs_text)
    if length_rule and frontend.reader.has_phonemes:
        both = train_rows.rows, validation_rows.rows
        # Packing has checked its texts.
        written = (rows for rows in both if isinstance(rows, RowTuple))
        check_languages([*chain.from_iterable(written)], frontend, data.max_rejected)
    make_folder(folder, "--runs-dir")
    cache = folder / "manifest-train.npz"
    grow = config.teacher.teacher is None
    train, vocabulary, unusable = build_manifest(
        train_rows, data, length_rule, known, grow=grow, cache=cache, frontend=frontend
    )
    if length_rule and frontend.reader.has_phonemes:
        log_frontend(frontend, vocabulary.languages)
    cache = folder / "manifest-validation.npz"
    validation, vocabulary, unusable_validation = build_manifest(
        validation_rows, data, length_rule, vocabulary, cache=cache, frontend=frontend
    )

    # Held-out rows that only lack symbols are no fault of the corpus: a small one has none to
    # spare. They are listed, but do not count where validation is off.
    checked = [(train_rows, train), (validation_rows, validation)]
    rejected = [*malformed, *unusable]
    is_usable = len(train) > 0 and len(rejected) <= data.max_rejected * len(train)
    is_held_out = validation_rows.metadata == train_rows.metadata and not len(validation)
    reasons = {row.reason for row in unusable_validation}
    listing = folder / "rejected.csv"
    if is_usable and is_held_out and reasons and reasons <= {UNKNOWN_SYMBOL, UNKNOWN_LANGUAGE}:
        _report_nothing_to_spare(config, len(train), unusable_validation)
        unneeded = [*excluded, *unusable_validation]
        report_rejected(rejected, checked[:1], data.max_rejected, listing, unneeded)
    else:
        rejected += unusable_validation
        report_rejected(rejected, checked, data.max_rejected, listing, excluded)
    corpora = _plan_corpora(config, train, validation, vocabulary, replicas, frontend, shares)
    return *corpora, vocabulary


def _rows_of(
    config: Config, needs_text: bool
) -> tuple[Rows, Rows, list[RejectedRow], list[RejectedRow]]:
    """Return the rows to train on and to validate on, the malformed and the excluded rows."""
    data = config.data
    corpus: str | Path | None = data.train_data
    if corpus is None:
        corpus = ensure_demo_corpus()
    train, validation, malformed = read_rows(
        data, corpus, data.validation_fraction, config.training.seed, needs_text
    )
    (train, validation), excluded = leave_out(data.exclude, train, validation)
    return train, validation, malformed, excluded


def _plan_corpora(
    config: Config,
    train: Manifest,
    validation: Manifest,
    vocabulary: Vocabulary,
    replicas: int,
    frontend: TextFrontend,
    shares: Sequence[float],
) -> tuple[Corpus, Corpus | None]:
    data = config.data
    accumulation = config.training.gradient_accumulation
    # Bounds are chosen for the step of one replica: shapes do not depend on their number.
    step_utterances = 1 if data.batch_seconds else data.batch_size * accumulation
    bounds = bucket_bounds(train.samples, data.buckets, step_utterances)
    sharing = {"accumulation": accumulation, "replicas": replicas, "shares": shares}
    plan = make_plan(train, bounds, config, **sharing)
    training = Corpus(train, plan, teacher_rows_of(config, vocabulary, train, plan, frontend))
    if not len(validation):
        return training, None
    longest = bucket_bounds(validation.samples, 1)
    if longest[-1] > bounds[-1]:
        bounds = np.append(bounds, longest[-1])
    return training, Corpus(validation, make_plan(validation, bounds, config))


def teacher_rows_of(
    config: Config, vocabulary: Vocabulary, train: Manifest, plan: Plan, frontend: TextFrontend
) -> TeacherRows | None:
    """Return which rows of the training batches a teacher speaks; None if it speaks none."""
    teacher = config.teacher
    data = config.data
    fraction = teacher.teacher_fraction
    if teacher.teacher is None or config.model.task != "tts" or not fraction:
        return None
    sizes = plan.batch_sizes.max(axis=1)
    silent = sizes[teacher_row_count(sizes, fraction) == 0]
    less = f"--teacher-fraction {fraction:g} is less than one row"
    if len(silent) == len(sizes):
        raise ConfigError(
            f"{less} of the largest batch, which has {silent.max()}. Give at least"
            f" {math.ceil(1000 / silent.max()) / 1000:g}, or 0 to align the recordings alone."
        )
    if len(silent):
        buckets = f"{len(silent)} of {len(sizes)} buckets"
        log.warning("%s of the batches of %s, where the teacher speaks nothing", less, buckets)
    if teacher.texts is None:
        return TeacherRows(fraction)
    longest = int(train.token_counts.max())
    texts = read_texts(Path(teacher.texts), data.language, frontend, vocabulary, longest)
    return TeacherRows(fraction, texts)


def log_frontend(frontend: TextFrontend, languages: Iterable[str]) -> None:
    """Log what reads texts, the numbers of each language, and the size of the lexicon."""
    reader = frontend.reader
    if not reader.normalises:
        by = f"{frontend.kind}, {reader.package} {reader.version}, {reader.licence}"
        log.info("front end      %s; %d words in the lexicon", by, len(frontend.lexicon))
        return
    parts = [f"{name}: {normalisers.description(name)}" for name in sorted(languages)]
    numbers = f"{frontend.normaliser}, {', '.join(parts)}"
    if frontend.normaliser == "none":
        numbers = "espeak-ng alone"
    log.info("numbers        %s; %d words in the lexicon", numbers, len(frontend.lexicon))


def _report_nothing_to_spare(config: Config, left: int, rejected: Sequence[RejectedRow]) -> None:
    """Raise DataError if validation needs unusable utterances; log a warning if it is off."""
    count = len(rejected)
    found = (
        f"{count} of {left + count} utterances held out have symbols that the other {left} lack"
        f" ({rejected[0].audio}: {rejected[0].detail})"
    )
    if not config.run.uses_held_out:
        log.warning("%s and are not used; --validation-fraction 0 trains on all utterances", found)
        return
    raise DataError(
        f"validation, samples or evaluations were requested, but the {found}. A corpus of fewer"
        f" than {SPARE_UTTERANCES} utterances often has none to spare. Train on all of it with"
        " --validation-fraction 0 --validate-every 0 --sample-every 0 --evaluate-every 0; or give"
        " more utterances, or others with --val-data."
    )


def batch_exceeds_corpus_warning(corpus: Corpus) -> str:
    """Return a sentence if a step needs more utterances than there are, else an empty one."""
    asked = corpus.plan.step_sizes.min()
    if asked <= len(corpus.manifest):
        return ""
    return (
        f"--batch-size, --gradient-accumulation and the replicas ask for {asked} utterances in a"
        f" step, but the corpus has {len(corpus.manifest)}: each step is the whole corpus"
    )


def corpus_folder(corpus: str | Path | None) -> Path:
    """Return the folder of a corpus, or of its metadata file; the demo corpus by default."""
    path = Path(corpus or DEMO_FOLDER)
    return path if path.is_dir() else path.parent


def make_plan(manifest: Manifest, bounds: np.ndarray, config: Config, **shared: Any) -> Plan:
    """Plan the batches of a manifest as the settings say; `shared` is how replicas share steps."""
    return Plan(
        manifest.samples,
        manifest.token_counts,
        manifest.speaker,
        bounds=bounds,
        batch_size=config.data.batch_size,
        batch_seconds=config.data.batch_seconds,
        seed=config.training.seed,
        **shared,
    )


def single_bucket_corpus(manifest: Manifest, config: Config) -> Corpus:
    """Return held-out utterances as a corpus whose batches all have one shape.

    Functions are traced once per shape, and the first batches hold utterances of all lengths.
    """
    return Corpus(manifest, make_plan(manifest, bucket_bounds(manifest.samples, 1), config))


def ensure_demo_corpus() -> Path:
    if not (DEMO_FOLDER / "metadata.csv").exists():
        effort = "with espeak-ng, which takes a few seconds"
        log.info("no --train-data: making the demo corpus in %s %s", DEMO_FOLDER, effort)
        make_demo_corpus(DEMO_FOLDER, utterances=400, languages=["en"], speakers=1, seed=0)
    log.info("no --train-data: training on the demo corpus in %s", DEMO_FOLDER)
    return DEMO_FOLDER


def check_languages(rows: Sequence[Row], frontend: TextFrontend, max_rejected: float) -> None:
    """Check that the front end knows the languages of the rows, and can read their texts.

    The texts must also be in the script of their language. A fraction of up to `max_rejected` may
    have an unknown language or a text that cannot be read: such rows are rejected one by one.
    Raises DataError for more.
    """
    rows_of: dict[str, list[Row]] = {}
    for row in rows:
        rows_of.setdefault(row.language, []).append(row)
    for language, spoken in rows_of.items():
        example = f"An example is {spoken[0].audio}: {spoken[0].text[:60]!r}."
        try:
            frontend.reader.check_language(language)
        except DataError as error:
            if len(spoken) > max_rejected * len(rows):
                found = f"{len(spoken)} of {len(rows)} rows have this language."
                raise DataError(f"{error} {found} {example}") from None
            continue
        scripts = scripts_of(language)
        letters = letters_by_script(row.text for row in spoken)
        foreign = [script for script in letters if script not in scripts]
        share = sum(letters[script] for script in foreign) / max(letters.total(), 1)
        if scripts and share > MAX_FOREIGN_LETTERS:
            raise DataError(
                f"language {language!r} was requested, which is written in {names_of(scripts)}"
                f" letters, but {100 * share:.0f} % of the letters in its {len(spoken)} rows are"
                f" {names_of(foreign)}. {example} Give the language of the texts with --language,"
                " or a column of languages; --text-frontend characters accepts any script."
            )
        _check_texts(spoken[:: len(spoken) // TRIED_TEXTS + 1], frontend, max_rejected)


def _check_texts(rows: Sequence[Row], frontend: TextFrontend, max_rejected: float) -> None:
    """Raise DataError if more than this fraction of texts cannot be read."""
    faults = []
    for row in rows:
        try:
            frontend.stages(row.text, row.language)
        except DataError as error:
            faults.append(error)
    if len(faults) > max_rejected * len(rows):
        found = f"{len(faults)} of {len(rows)} texts that were tried are like this."
        raise DataError(f"{faults[0]} {found}")
