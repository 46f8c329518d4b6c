"""The honest score of a voice: each figure between copy synthesis and shuffled texts."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import PlacementConfig
from myxtts.data.dataset import corpus_folder
from myxtts.data.manifest import Manifest
from myxtts.errors import ConfigError
from myxtts.evaluation.acoustic_metrics import AcousticFeatures, corpus_metrics, utterance_metrics
from myxtts.evaluation.asr_score import write_asr_score
from myxtts.evaluation.boundaries import Phoneme, boundaries, boundary_figures, found_s, read_alignments, word_spans
from myxtts.evaluation.held_out import (
    Utterance,
    load_again,
    natural_speech,
    other_recordings,
    read_utterances,
)
from myxtts.evaluation.planted_errors import plant
from myxtts.evaluation.report import SHOWN, Metric, Score, draw, folder_for, tell
from myxtts.evaluation.speakers import NearestSpeaker, voice_print
from myxtts.evaluation.speech import BATCH_UTTERANCES, copy_synthesis, speak, transcribe_waves
from myxtts.files import check_writable
from myxtts.models.xtts import XTTS, SynthesisOptions
from myxtts.placement import devices
from myxtts.placement.routes import Route, plan_routes
from myxtts.recognition.transcriber import Transcriber
from myxtts.tasks.tts_samples import synthesis_options
from myxtts.text.edit_distance import error_rates
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.load_model import load_model
from myxtts.training.select_checkpoint import select_checkpoint, settings_of, vocabulary_of

MOST_SPOKEN = 50
DRAWN = 4
NATURAL_UTTERANCES = 20  # of each speaker, for its centroid

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What to measure, and how it is said.

    Attributes:
        utterances: the most to measure; without it MOST_SPOKEN of a voice, and all of a recogniser.
        data: a corpus as of --train-data; the held-out utterances of the run without it.
        steps, guidance: of synthesis; those of the run without them.
        recogniser: run of one that is to hear the voice.
    """

    utterances: int | None = None
    data: Path | None = None
    steps: int | None = None
    guidance: float | None = None
    recogniser: Path | None = None

    def options(self, own: SynthesisOptions) -> SynthesisOptions:
        """The run's own manner with what was chosen."""
        chosen = {"ode_steps": self.steps, "guidance": self.guidance}
        return replace(own, **{name: value for name, value in chosen.items() if value is not None})

    def check_asr_options(self, run: Path) -> None:
        """Raises ConfigError where something is chosen that only a voice has."""
        asked = {"--ode-steps": self.steps, "--guidance": self.guidance, "--asr": self.recogniser}
        wrong = [flag for flag, value in asked.items() if value is not None]
        if wrong:
            raise ConfigError(f"{', '.join(wrong)} was asked for, but {run} is a recogniser itself. Leave that out.")


def write_score(run: Path, checkpoint: str | None, choice: Choice, json_file: Path | None, out: Path | None) -> None:
    """Measure a run on GPU 0 or, without one, on the CPU; print a table, write JSON and pictures.

    A run of a recogniser is measured as `write_hearing` does.

    Raises:
        UserError: the run, a corpus or an output cannot be used.
    """
    chosen = select_checkpoint(run, checkpoint)
    if settings_of(chosen, read_metadata(chosen)).model.task == "asr":
        choice.check_asr_options(run)
        write_asr_score(run, chosen.name, choice.data, choice.utterances, json_file=json_file, out=out)
        return
    check_writable("--json", json_file)
    folder = folder_for(run, chosen, choice.data, out)
    placement = plan_routes(PlacementConfig(), devices.gpu_count())
    devices.configure(placement)
    tell(score_of(run, chosen, choice, placement.routes[0], folder), json_file)
    log.info("pictures       %s", folder)


def score_of(run: Path, checkpoint: Path, choice: Choice, route: Route, pictures: Path) -> Score:
    """Measure a checkpoint.

    Raises:
        CheckpointError: it is damaged, or its corpus has changed since.
        DataError: a corpus is gone or cannot be used, nothing was held out, or a file cannot be read.
    """
    metadata = read_metadata(checkpoint)
    config, corpus, held_out = load_again(checkpoint, metadata, run, needs_held_out=choice.data is None)
    manifest = other_recordings(choice.data, config, metadata, pictures)[0] if choice.data else held_out.manifest
    network = load_model(checkpoint, metadata, route.model)
    device, options = route.model, choice.options(synthesis_options(config.model))
    transcriber = Transcriber(choice.recogniser, device) if choice.recogniser else None
    found = read_utterances(network, manifest, config, route, run, choice.utterances or MOST_SPOKEN)
    texts = (
        [transcriber.normalise_reference(one.text, metadata["languages"][one.language]) for one in found]
        if transcriber
        else []
    )
    log.info("evaluation     %s, %d utterances", checkpoint, len(found))
    waves, real_time_factor = spoken(network, found, metadata, options, device)
    source = f"utterances of {choice.data}" if choice.data else "held-out utterances"
    notes = [
        f"{len(found)} {source}, {sum(len(one.wave) for one in found) / SAMPLE_RATE_HZ:.1f} s of speech; "
        f"{options.ode_steps} steps of synthesis, guidance {options.guidance:g}",
        f"the real-time factor is that of batches of {BATCH_UTTERANCES} on {device}, after a warm-up",
    ]
    if "shuffled_texts" not in waves:
        notes.append("shuffled texts are left out: one utterance has no other's text")

    recorded = transcribe_waves([one.wave for one in found], device)
    sounds = {column: transcribe_waves(wave, device) for column, wave in waves.items()}
    draw(pictures, found[:DRAWN], recorded[:DRAWN], sounds["voice"][:DRAWN])
    said = {column: list(transcriber.transcribe(wave)) for column, wave in waves.items()} if transcriber else {}
    if transcriber:
        notes += recogniser_notes(transcriber, texts, found)
    figures = figures_of(recorded, sounds, texts, said)
    metrics = figures(range(len(found))) | {"real_time_factor": Metric(real_time_factor)}
    held = config.data.audio_root or config.data.val_data or config.data.train_data
    alignments = alignments_of(corpus_folder(choice.data or held))
    notes.append(planted_faults(found, recorded, waves["copy_synthesis"], alignments, device))
    for more, note in (
        speaker_accuracy(corpus.manifest, manifest, found, {"natural": recorded, **sounds}, device),
        phoneme_boundaries(found, alignments, vocabulary_of(metadata).symbols),
    ):
        metrics |= more
        notes.append(note)
    by_language = languages_of(found, metadata["languages"], figures)
    return Score(str(run), checkpoint.name, len(found), in_order(metrics), by_language, tuple(notes))


def spoken(
    network: XTTS, found: Sequence[Utterance], metadata: dict[str, Any], options: SynthesisOptions, device: str
) -> tuple[dict[str, list[np.ndarray]], float]:
    """The waves of each column, and the seconds that a second of the voice's speech takes.

    One utterance alone has no shuffled text.
    """

    def say(utterances: Sequence[Utterance]) -> list[np.ndarray]:
        """The text of each in the voice of the utterance that stands in its place in `found`."""
        texts, languages = [one.text for one in utterances], [one.language for one in utterances]
        return speak(network, metadata, texts, languages, [one.reference for one in found], options, device)

    waves = {"shuffled_texts": say(another_text_each(found))}  # first, which warms up for the one that is timed
    started_s = time.perf_counter()
    waves["voice"] = say(found)
    elapsed_s = time.perf_counter() - started_s
    waves["copy_synthesis"] = copy_synthesis([one.mel for one in found], device)
    if len(found) == 1:
        del waves["shuffled_texts"]
    return waves, elapsed_s * SAMPLE_RATE_HZ / sum(map(len, waves["voice"]))


def in_order(metrics: dict[str, Metric]) -> dict[str, Metric]:
    """As in SHOWN."""
    return {key: metrics[key] for key in SHOWN if key in metrics}


def another_text_each(utterances: Sequence[Utterance]) -> list[Utterance]:
    """In the place of each utterance another one, of the same language as far as that goes."""
    by_language = sorted(range(len(utterances)), key=lambda place: utterances[place].language)
    shuffled = list(utterances)
    for place, other in zip(by_language, by_language[1:] + by_language[:1], strict=True):
        shuffled[place] = utterances[other]
    return shuffled


def figures_of(
    recorded: Sequence[AcousticFeatures],
    sounds: dict[str, list[AcousticFeatures]],
    texts: Sequence[str],
    said: dict[str, list[str]],
) -> Callable[[Sequence[int]], dict[str, Metric]]:
    """What gives the figures of the utterances in some places: see `distances` and, where there is one, `misheard`."""

    def chosen(items: Sequence, places: Sequence[int]) -> list:
        return [items[place] for place in places]

    def figures(places: Sequence[int]) -> dict[str, Metric]:
        found = distances(chosen(recorded, places), {column: chosen(own, places) for column, own in sounds.items()})
        if not said:
            return found
        return found | misheard(chosen(texts, places), {column: chosen(own, places) for column, own in said.items()})

    return figures


def distances(recorded: Sequence[AcousticFeatures], sounds: dict[str, list[AcousticFeatures]]) -> dict[str, Metric]:
    """What tells each column's sounds from the recorded ones."""
    by_column = {
        column: corpus_metrics([utterance_metrics(*pair) for pair in zip(recorded, spoken, strict=True)])
        for column, spoken in sounds.items()
    }
    ceiling = by_column["copy_synthesis"]["mel_cepstral_distortion"]
    for figures in by_column.values():
        figures["relative_distortion"] = figures["mel_cepstral_distortion"] / ceiling if ceiling else None
    return metrics_of(by_column)


def misheard(texts: Sequence[str], said: dict[str, list[str]]) -> dict[str, Metric]:
    """What tells the texts that a recogniser hears in each column from the true ones."""
    return metrics_of({column: error_rates(texts, heard) for column, heard in said.items()})


def metrics_of(by_column: dict[str, dict[str, float | None]]) -> dict[str, Metric]:
    """The figures of each column as the columns of each figure."""
    keys = by_column["voice"]
    return {key: Metric(**{column: figures[key] for column, figures in by_column.items()}) for key in keys}


def recogniser_notes(transcriber: Transcriber, texts: Sequence[str], found: Sequence[Utterance]) -> list[str]:
    """Who hears, how well it hears the recordings themselves, and for whom it is too kind."""
    rates = error_rates(texts, list(transcriber.transcribe(one.wave for one in found)))
    characters, words = rates["character_error_rate"], rates["word_error_rate"]
    return [
        f"the recogniser is {transcriber.run}, {transcriber.checkpoint.name}; of the recordings it has a character "
        f"error rate of {characters:.1%} and a word error rate of {words:.1%}",
        "its figures are optimistic where it was trained on the corpus of the voice or on speech of the same "
        "synthesiser: compare voices by one recogniser only",
    ]


def languages_of(
    found: Sequence[Utterance], names: Sequence[str], figures: Callable[[Sequence[int]], dict[str, Metric]]
) -> dict[str, dict[str, Metric]]:
    """The figures of each language, where there are several.

    Args:
        names: of the languages.
        figures: of the utterances in these places of `found`.
    """
    places = defaultdict(list)
    for place, one in enumerate(found):
        places[names[one.language]].append(place)
    if len(places) < 2:
        return {}
    return {language: in_order(figures(own)) for language, own in sorted(places.items())}


def alignments_of(folder: Path) -> dict[str, list[Phoneme]]:
    """What the corpus tells of its phonemes' times; nothing where it has no alignments.jsonl."""
    file = folder / "alignments.jsonl"
    return read_alignments(file) if file.exists() else {}


def planted_faults(
    found: Sequence[Utterance],
    recorded: Sequence[AcousticFeatures],
    copies: Sequence[np.ndarray],
    alignments: dict[str, list[Phoneme]],
    device: str,
) -> str:
    """A note on how many words that were cut out of copy synthesis, or said twice in it, are found."""
    known = [place for place, one in enumerate(found) if word_spans(alignments.get(Path(one.id).stem, ()))]
    if not known:
        return "the finding of skipped and repeated words is not tried: no alignments.jsonl tells the times of words"
    cut, doubled = plant([copies[i] for i in known], [alignments[Path(found[i].id).stem] for i in known])
    missed = [
        sum(not getattr(utterance_metrics(recorded[i], sound), which) for i, sound in zip(known, heard, strict=True))
        for which, heard in (
            ("has_deletion", transcribe_waves(cut, device)),
            ("has_insertion", transcribe_waves(doubled, device)),
        )
    ]
    return (
        f"of {len(known)} copies with a word cut out {len(known) - missed[0]} are found, "
        f"of {len(known)} with one said twice {len(known) - missed[1]}"
    )


def speaker_accuracy(
    training: Manifest,
    measured: Manifest,
    found: Sequence[Utterance],
    sounds: dict[str, list[AcousticFeatures]],
    device: str,
) -> tuple[dict[str, Metric], str]:
    """How often the nearest natural speaker is the right one, where there are several; and a note on it.

    Args:
        training: gives the natural speech of the speakers that were trained on.
        measured: gives that of the others, by its recordings that are not in `found`.
        sounds: by column, and "natural": the recordings of `found`.
    """
    unheard = ~np.isin(measured.speaker, training.speaker) & ~np.isin(measured.ids, [one.id for one in found])
    waves, speakers = natural_speech(training, np.arange(len(training)), NATURAL_UTTERANCES)
    more_waves, more_speakers = natural_speech(measured, np.flatnonzero(unheard), NATURAL_UTTERANCES)
    speakers = np.concatenate([speakers, more_speakers])
    count = len(np.unique(speakers))
    if count < 2:
        return {}, "speaker accuracy is left out: there is one speaker"
    prints = [voice_print(sound.mel) for sound in transcribe_waves(waves + more_waves, device)]
    nearest = NearestSpeaker(np.stack(prints), speakers)
    metrics, parts = {}, []
    for group, members in (("seen", np.unique(training.speaker)), ("unseen", np.unique(more_speakers))):
        places = [place for place, one in enumerate(found) if one.speaker in members]
        if places:
            wanted = [found[place].speaker for place in places]
            shares = {
                column: nearest.accuracy([heard[place].mel for place in places], wanted)
                for column, heard in sounds.items()
            }
            parts.append(f"{len(places)} utterances of {group} ones ({shares.pop('natural'):.0%} of their recordings)")
            metrics[f"speaker_accuracy_{group}"] = Metric(**shares)
    if not parts:
        return {}, "speaker accuracy is left out: no utterance is by a speaker whose natural speech is known"
    note = f"speaker accuracy is among {count} speakers (chance {1 / count:.1%}), of {' and '.join(parts)}"
    return metrics, note


def phoneme_boundaries(
    found: Sequence[Utterance], alignments: dict[str, list[Phoneme]], symbols: SymbolTable
) -> tuple[dict[str, Metric], str]:
    """The alignment search against the synthesiser's own times where these are sound; and a note on it."""
    if not alignments:
        return {}, "phoneme boundaries are left out: the corpus has no alignments.jsonl"
    errors_ms, unsound, left_out = defaultdict(list), 0, 0
    for one in found:
        known = boundaries(spelling_of(one, symbols), alignments.get(Path(one.id).stem, ()))
        left_out += known is None
        for boundary in known or ():
            unsound += not boundary.sound
            if boundary.sound:
                error_ms = 1000.0 * (found_s(one.path, boundary) - boundary.true_s)
                errors_ms["boundary"].append(error_ms)
                errors_ms[f"boundary_{boundary.kind}"].append(error_ms)
    figures = {}
    for name, errors in errors_ms.items():
        figures |= boundary_figures(name, errors)
    counts = Counter({name.removeprefix("boundary_"): len(errors) for name, errors in errors_ms.items()})
    note = (
        f"{counts.pop('boundary', 0)} phoneme boundaries "
        f"({', '.join(f'{count} {kind}' for kind, count in sorted(counts.items()))}); {unsound} more are left out, "
        f"whose true times are not sound, and {left_out} recordings, whose text and truth differ"
    )
    return {key: Metric(value) for key, value in figures.items()}, note


def spelling_of(utterance: Utterance, symbols: SymbolTable) -> list[str]:
    """The symbol of each token, "" for the begin and the end."""
    inner = (symbols.symbols[token - FIRST_SYMBOL_ID] for token in utterance.tokens[1:-1])
    return ["", *inner, ""]
