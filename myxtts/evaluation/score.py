"""The honest score of a voice: each figure between copy synthesis and shuffled texts."""

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import Placement
from myxtts.data.manifest import Manifest
from myxtts.errors import ConfigError
from myxtts.evaluation.boundaries import WORD_GAP, boundary_figures, found_word_gaps, read_word_gaps
from myxtts.evaluation.held_out import Utterance, corpus_folder, load_again, natural_speech, read_utterances
from myxtts.evaluation.measures import Sound, compare, summary
from myxtts.evaluation.report import SHOWN, Metric, Score, draw
from myxtts.evaluation.sounds import BATCH_UTTERANCES, copy_synthesis, hear, speak
from myxtts.evaluation.speakers import NearestSpeaker, voice_print
from myxtts.files import write_whole
from myxtts.placement import devices
from myxtts.placement.routes import Route, plan_routes
from myxtts.text.frontend import symbols_of
from myxtts.text.symbols import SymbolTable
from myxtts.training.checkpoint import read_about
from myxtts.training.trained import choose_checkpoint, load_network

DRAWN = 4
NATURAL_UTTERANCES = 20  # of each speaker, for its centroid

log = logging.getLogger(__name__)


def write_score(run: Path, checkpoint: str | None, utterances: int, json_file: Path | None, out: Path | None) -> None:
    """Measure a run on GPU 0 or, without one, on the CPU; print a table, write JSON and pictures.

    Raises:
        UserError: the run, its corpus or an output cannot be used.
    """
    chosen = choose_checkpoint(run, checkpoint)
    if json_file is not None and (json_file.is_dir() or not json_file.parent.is_dir()):
        fault = "that is a folder" if json_file.is_dir() else f"there is no folder {json_file.parent}"
        raise ConfigError(f"--json {json_file} was asked for, but {fault}. Name a file in a folder that exists.")
    folder = out or run / "evaluation" / chosen.name
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} was asked for, but that is a file. Name a folder.")
    placement = plan_routes(Placement(), devices.gpu_count())
    devices.configure(placement)
    score = score_of(run, chosen, utterances, placement.routes[0], folder)
    print(score.table())
    if json_file is not None:
        write_whole(json_file, json.dumps(score.to_json(), ensure_ascii=False, indent=1).encode())
    log.info("pictures       %s", folder)


def score_of(run: Path, checkpoint: Path, utterances: int, route: Route, pictures: Path) -> Score:
    """Measure a checkpoint on at most `utterances` of the run's held-out ones.

    Raises:
        CheckpointError: it is damaged, or its corpus has changed since.
        DataError: the corpus is gone, nothing was held out, or a file cannot be read.
    """
    about = read_about(checkpoint)
    config, corpus, held_out = load_again(checkpoint, about, run)
    network = load_network(checkpoint, about, route.model)
    device = route.model
    found = read_utterances(network, held_out.manifest, config, route, run, utterances)
    log.info("evaluation     %s, %d held-out utterances", checkpoint, len(found))

    symbols = SymbolTable.from_list(about["symbols"])

    def say(texts: Sequence[Utterance]) -> list[np.ndarray]:
        """Each text in the voice of the utterance that stands in its place in `found`."""
        spellings = (symbols_of(one.text, about["languages"][one.language], config.data.text_frontend) for one in texts)
        tokens = [symbols.encode(spelling) for spelling in spellings]
        return speak(network, tokens, [one.language for one in texts], [one.reference for one in found], device)

    waves = {"shuffled_texts": say(another_text_each(found))}  # first, which warms up for the one that is timed
    started_s = time.perf_counter()
    waves["voice"] = say(found)
    elapsed_s = time.perf_counter() - started_s
    waves["copy_synthesis"] = copy_synthesis([one.mel for one in found], device)
    speed = Metric(elapsed_s * SAMPLE_RATE_HZ / sum(map(len, waves["voice"])))
    notes = [
        f"{len(found)} held-out utterances, {sum(len(one.wave) for one in found) / SAMPLE_RATE_HZ:.1f} s of speech",
        f"the real-time factor is that of batches of {BATCH_UTTERANCES} on {device}, after a warm-up",
    ]
    if len(found) == 1:
        del waves["shuffled_texts"]
        notes.append("shuffled texts are left out: one utterance has no other's text")

    recorded = hear([one.wave for one in found], device)
    sounds = {column: hear(wave, device) for column, wave in waves.items()}
    draw(pictures, found[:DRAWN], recorded[:DRAWN], sounds["voice"][:DRAWN])
    metrics = distances(recorded, sounds) | {"real_time_factor": speed}
    for more, note in (
        speaker_accuracy(corpus.manifest, found, sounds, device),
        word_boundaries(corpus_folder(config.data) / "alignments.jsonl", found, symbols),
    ):
        metrics |= more
        notes.append(note)
    ordered = {key: metrics[key] for key in SHOWN if key in metrics}
    return Score(str(run), checkpoint.name, len(found), ordered, tuple(notes))


def another_text_each(utterances: Sequence[Utterance]) -> list[Utterance]:
    """In the place of each utterance another one, of the same language as far as that goes."""
    by_language = sorted(range(len(utterances)), key=lambda place: utterances[place].language)
    shuffled = list(utterances)
    for place, other in zip(by_language, by_language[1:] + by_language[:1], strict=True):
        shuffled[place] = utterances[other]
    return shuffled


def distances(recorded: Sequence[Sound], sounds: dict[str, list[Sound]]) -> dict[str, Metric]:
    """What tells each column's sounds from the recorded ones."""
    by_column = {
        column: summary([compare(*pair) for pair in zip(recorded, spoken, strict=True)])
        for column, spoken in sounds.items()
    }
    ceiling = by_column["copy_synthesis"]["mel_cepstral_distortion"]
    for figures in by_column.values():
        figures["relative_distortion"] = figures["mel_cepstral_distortion"] / ceiling if ceiling else None
    keys = by_column["voice"]
    return {key: Metric(**{column: figures[key] for column, figures in by_column.items()}) for key in keys}


def speaker_accuracy(
    training: Manifest, found: Sequence[Utterance], sounds: dict[str, list[Sound]], device: str
) -> tuple[dict[str, Metric], str]:
    """How often the nearest natural speaker is the right one, where there are several; and a note on it."""
    count = len(np.unique(training.speaker))
    if count < 2:
        return {}, "speaker accuracy is left out: the corpus has one speaker"
    waves, speakers = natural_speech(training, NATURAL_UTTERANCES)
    nearest = NearestSpeaker(np.stack([voice_print(sound.mel) for sound in hear(waves, device)]), speakers)
    known = [place for place, one in enumerate(found) if one.speaker in nearest.speakers]
    if not known:
        return {}, "speaker accuracy is left out: no held-out utterance is by a speaker of the training corpus"
    wanted = [found[place].speaker for place in known]
    accuracies = {
        column: nearest.accuracy([spoken[place].mel for place in known], wanted) for column, spoken in sounds.items()
    }
    note = f"speaker accuracy is of {len(known)} utterances; chance is {1 / count:.1%} with {count} speakers"
    return {"speaker_accuracy": Metric(**accuracies)}, note


def word_boundaries(
    alignments: Path, found: Sequence[Utterance], symbols: SymbolTable
) -> tuple[dict[str, Metric], str]:
    """The alignment search against the synthesiser's own times, where the corpus has them; and a note on it."""
    if not alignments.exists():
        return {}, "word boundaries are left out: the corpus has no alignments.jsonl"
    if symbols.unknown([WORD_GAP]):
        return {}, "word boundaries are left out: the run's texts have no spaces"
    true_gaps = read_word_gaps(alignments)
    word_gap = int(symbols.encode([WORD_GAP])[1])
    errors_ms = []
    for one in found:
        searched, true = found_word_gaps(one.tokens, one.path, word_gap), true_gaps.get(Path(one.id).stem)
        if true is not None and len(searched) == len(true):
            errors_ms.append(1000.0 * (searched - true))
    gaps = np.concatenate([np.zeros([0, 2]), *errors_ms])
    left_out = len(found) - len(errors_ms)
    note = f"{len(gaps)} word gaps of {len(errors_ms)} recordings; {left_out} left out: other gaps in text and truth"
    if not len(gaps):
        return {}, note
    figures = boundary_figures("word_end", gaps[:, 0]) | boundary_figures("word_start", gaps[:, 1])
    return {key: Metric(value) for key, value in figures.items()}, note
