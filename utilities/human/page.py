"""Write a page to hear a voice beside the recordings and other systems, for held-out sentences.

    python utilities/human/page.py --run runs/human --out runs/human/listen.html
    python utilities/human/page.py --run runs/human --samples docs/samples

The sentences are of `metadata_eval.csv` of --corpus, of 2 to 9 s, and evenly spaced. Each is heard
as the recording, its copy by the vocoder, the voice, the voice with Griffin-Lim, espeak-ng, and,
where Festival is installed, by the unit selection of festvox-ru, the same man's; all equally loud.
The page has all sounds within it, and the table of `evaluate` if the run has one. --samples writes
OGG files of the systems in SAMPLED instead, and a README.md that lists them.
"""

import argparse
import base64
import html
import io
import os
import shutil
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path
from string import Template
from typing import NamedTuple

from myxtts.tasks import loading

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import soundfile
import soxr

from myxtts.audio.audio_file import read_wave
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.sound_header import read_header
from myxtts.base.console import filter_stderr, report_errors
from myxtts.base.errors import DataError
from myxtts.base.files import write_whole
from myxtts.checkpoints.trained_run import TrainedRun
from utilities.human.corpora import OUT, TABLES, Row, read_tables

LENGTHS_S = 2.0, 9.0
LEVEL_DB, PEAK = -23.0, 0.9
FRAME = 512
FESTIVAL_VOICE = "msu_ru_nsh_clunits"
SAMPLED = "recording", "vocoder", "voice", "espeak"
SAMPLES_RATE_HZ = 16_000  # that of the recordings
SAMPLES_HEAD = """# Samples of `make real`

Held-out sentences, equally loud: `python utilities/human/page.py --samples docs/samples`. The
recordings are of festvox-ru, whose [licence](../../tests/human/LICENCE) also holds for these
copies, and for the voice that was trained on them."""
SYSTEMS = {
    "recording": ("Recording", "the person"),
    "vocoder": ("Vocoder's copy", "the recording's mel spectrogram, made a wave by the vocoder"),
    "voice": ("Voice", "the text, spoken by the run with its vocoder"),
    "griffin-lim": ("Voice, Griffin-Lim", "the same without a trained vocoder"),
    "espeak": ("espeak-ng", "rules and formants; not this person"),
    "festival": (
        "Unit selection",
        "Festival's voice of the same man; it pastes pieces of all his recordings, these held-out"
        " ones included, so it may play the recording itself",
    ),
}
TEMPLATE = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))


class Sounds(NamedTuple):
    """A sentence, and its waves by system, float32 [samples] at sample_rate_hz()."""

    row: Row
    waves: dict[str, np.ndarray]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, default=Path("runs/human"))
    parser.add_argument("--vocoder", help="run of a vocoder; by default the one that the run names")
    parser.add_argument("--corpus", type=Path, default=OUT / "festvox-ru")
    parser.add_argument("--sentences", type=int, help="8, and 2 for --samples")
    parser.add_argument("--out", type=Path, help="the page; by default RUN/listen.html")
    parser.add_argument("--samples", type=Path, help="folder for OGG files, instead of the page")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    options = parser.parse_args()
    count = options.sentences or (2 if options.samples else 8)
    trained = TrainedRun.open_for_use(options.run)  # before headers are read at another rate
    rows = choose_sentences(options.corpus, count)
    sentences = speak(trained, options.vocoder, options.corpus, rows)
    if options.samples:
        write_samples(options.samples, sentences)
        return 0
    page = options.out or options.run / "listen.html"
    write_whole(page, render(options.run, sentences).encode())
    print(f"Listen:  {page.resolve().as_uri()}")
    if options.open and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(page.resolve().as_uri())
    return 0


def choose_sentences(corpus: Path, count: int) -> list[Row]:
    """Return evenly spaced held-out sentences of a corpus; DataError without any."""
    if not (corpus / TABLES[1]).exists():
        raise DataError(
            f"{corpus / TABLES[1]} was requested, but does not exist. Make the corpus with"
            " utilities/human/corpora.py, or give another with --corpus."
        )
    rows = []
    for row in read_tables(corpus)[TABLES[1]]:
        header = read_header(str(corpus / row["path"]))
        if LENGTHS_S[0] <= header.samples / header.rate_hz <= LENGTHS_S[1]:
            rows.append(row)
    places = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)
    return [rows[place] for place in places]


def speak(run: TrainedRun, vocoder: str | None, corpus: Path, rows: list[Row]) -> list[Sounds]:
    """Return the sounds of sentences by all systems that are installed."""
    from myxtts.audio.mel import log_mel
    from myxtts.audio.vocoder import vocode
    from myxtts.placement import devices
    from myxtts.tasks.tts.synthesizer import Synthesizer

    device = devices.configure_default().routes[0].model
    copier = loading.load_vocoder(run.select_vocoder(vocoder), device)
    voices = {
        "voice": Synthesizer(run.path, device, vocoder),
        "griffin-lim": Synthesizer(run.path, device, "griffin-lim"),
    }
    # A recording of the training data: the voice has heard it, and no sentence of the page.
    reference = corpus / read_tables(corpus)[TABLES[0]][0]["path"]
    # The recordings of festvox-ru lie within the voice that is made of them.
    festival_voice = (corpus / "wavs").resolve().parent
    has_festival = festival_voice.name == FESTIVAL_VOICE and shutil.which("text2wave")
    sentences = []
    for row in rows:
        recording = read_wave(corpus / row["path"])
        mel = log_mel(recording[None])
        waves = {"recording": recording, "vocoder": vocode(copier, mel, [mel.shape[1]])[0]}
        for name, voice in voices.items():
            waves[name] = voice.synthesize(row["text"], [reference], row["language"])
        waves["espeak"] = espeak(row)
        if has_festival:
            waves["festival"] = festival(row, festival_voice)
        sentences.append(Sounds(row, {name: equally_loud(wave) for name, wave in waves.items()}))
    return sentences


def espeak(row: Row) -> np.ndarray:
    from myxtts.text.espeak import EspeakVoice, isolated_copy

    with isolated_copy() as library:
        return library.synthesize(row["text"], EspeakVoice(row["language"]))[0] / np.float32(32768)


def festival(row: Row, folder: Path) -> np.ndarray:
    """Speak by the unit selection voice in a folder; DataError if Festival fails."""
    # Festival sets where it looks for voices when it starts.
    path = f'(set! voice-path (list "{folder.parents[1]}/"))'
    voice = f"(begin {path} (search-for-voices) (voice_{folder.name}))"
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "speech.wav"
        command = ["text2wave", "-eval", voice, "-o", str(file)]
        process = subprocess.run(command, input=row["text"].encode(), capture_output=True)
        if not file.exists():
            message = process.stderr.decode(errors="replace").strip()
            raise DataError(
                f"the voice {folder} was requested of Festival, which failed: {message[-200:]}."
                " Reinstall or remove festival."
            )
        return read_wave(file)


def equally_loud(wave: np.ndarray) -> np.ndarray:
    """Bring the level of a wave, without its pauses, to LEVEL_DB; at most PEAK."""
    frames = wave[: len(wave) // FRAME * FRAME].reshape(-1, FRAME)
    power = np.mean(np.square(frames, dtype=np.float64), axis=1)
    loud = power[power >= power.max() / 1000]
    gain = 10 ** (LEVEL_DB / 20) / np.sqrt(loud.mean() + 1e-12)
    return (wave * min(gain, PEAK / max(np.abs(wave).max(), 1e-9))).astype(np.float32)


def ogg(wave: np.ndarray) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, wave, sample_rate_hz(), format="OGG", subtype="VORBIS")
    return file.getvalue()


def render(run: Path, sentences: list[Sounds]) -> str:
    """Return the page, with the newest table of `evaluate` if the run has one."""
    named = {name: SYSTEMS[name] for name in sentences[0].waves}
    legend = "".join(f"<dt>{title}</dt><dd>{about}.</dd>" for title, about in named.values())
    sections = []
    for row, waves in sentences:
        figures = []
        for name, wave in waves.items():
            title = named[name][0]
            sound = base64.b64encode(ogg(wave)).decode()
            source = f'preload="metadata" src="data:audio/ogg;base64,{sound}"'
            audio = f'<audio controls aria-label="{title}" {source}></audio>'
            figures.append(f"<figure><figcaption>{title}</figcaption>{audio}</figure>")
        heading = f'<h2 lang="{row["language"]}">{html.escape(row["text"])}</h2>'
        sections.append(f'{heading}<div class="systems">{"".join(figures)}</div>')
    tables = sorted(run.glob("evaluation/*/scores.md"), key=os.path.getmtime)
    scores = html.escape(tables[-1].read_text(encoding="utf-8")) if tables else ""
    return TEMPLATE.substitute(
        title=f"The voice {html.escape(run.name)}",
        legend=legend,
        sentences="\n".join(sections),
        scores=f"<h2>Measured by evaluate</h2><pre>{scores}</pre>" if scores else "",
    )


def write_samples(folder: Path, sentences: list[Sounds]) -> None:
    """Write the systems in SAMPLED of each sentence as OGG at 16 kHz, and a list, README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [SAMPLES_HEAD]
    for number, (row, waves) in enumerate(sentences, 1):
        lines += [f"\n{row['text']}\n"]
        for name in SAMPLED:
            file = folder / f"{number}-{name}.ogg"
            wave = soxr.resample(waves[name], sample_rate_hz(), SAMPLES_RATE_HZ)
            soundfile.write(file, wave, SAMPLES_RATE_HZ, format="OGG", subtype="VORBIS")
            title, about = SYSTEMS[name]
            lines.append(f"- [{title}]({file.name}): {about}")
    write_whole(folder / "README.md", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    filter_stderr()
    sys.exit(report_errors(main))
