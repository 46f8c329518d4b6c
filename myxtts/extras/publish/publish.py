"""A voice as a folder for others: weights, the exported voice, samples and a model card."""

import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from myxtts.base.files import write_whole
from myxtts.base.published import CHECKSUMS, file_digest
from myxtts.checkpoints.files import write_checkpoint
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.flags import marked, with_values
from myxtts.config.load import dump
from myxtts.config.schema import PER_MACHINE
from myxtts.extras.export.export import check_new_folder, complete_folder, export_run
from myxtts.report.overview import read_facts
from myxtts.speak.player import ExportedSpeaker, read_voice
from myxtts.speak.sound_file import write_sentences
from myxtts.text.readers import PLAYED

OPEN_LICENCE = "FILL IN, here and as `license` above"
FROM_WEIGHTS = """\
myxtts synthesize --run . --text "{text}"
myxtts train --init-from . --train-data CORPUS --run NAME
"""
CARD = Path(__file__).with_name("card.md").read_text("utf-8")

log = logging.getLogger(__name__)


# A hidden folder is filled: the exported voice, the weights without names of speakers and files,
# samples spoken by the exported voice itself, the model card, and checksums of all of them. Then it
# is renamed.
def publish_run(
    run: Path,
    out: Path,
    texts: Sequence[str],
    checkpoint: str | None = None,
    vocoder: str | None = None,
    references: Mapping[str, Sequence[Path]] | None = None,
    language: str | None = None,
    precisions: Sequence[str] | None = None,
    licence: str | None = None,
    consent: str | None = None,
    without_weights: bool = False,
) -> None:
    """Write the folder `out`, which is a run of one checkpoint without what training alone needs.

    `texts` are spoken as samples, and nobody can start from a voice `without_weights`; other
    arguments as in `export_run`. Raises UserError if the run, the vocoder, a text or the output is
    unusable.
    """
    check_new_folder(out)
    trained = TrainedRun.open_for_use(run, checkpoint, "tts")
    choice = trained.select_vocoder(vocoder)
    with complete_folder(out) as folder:
        export_run(
            run,
            folder / "onnx",
            checkpoint,
            vocoder,
            form="onnx",
            references=references,
            language=language,
            precisions=precisions,
        )
        if not without_weights:
            write_weights(trained, folder)
            if choice.trained:
                write_weights(choice.trained, folder / "vocoder")
        speaker = ExportedSpeaker(folder / "onnx")
        names = write_samples(speaker, texts, folder)
        facts = card_facts(trained, folder, texts[0])
        facts["from_weights"] = "" if without_weights else FROM_WEIGHTS.format(text=texts[0])
        facts["consent"] = consent or facts["consent"]
        facts |= {"licence": licence or OPEN_LICENCE, "license": (licence or "other").lower()}
        samples = "\n".join(f"- [{name}]({name})" for name in names)
        card = CARD.format(**facts, language=speaker.language, samples=samples)
        write_whole(folder / "README.md", card.encode())
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        lines = (f"{file_digest(path)}  {path.relative_to(folder)}\n" for path in files)
        write_whole(folder / CHECKSUMS, "".join(lines).encode())
    size = sum(path.stat().st_size for path in out.rglob("*"))
    entry: dict[str, Any] = {"languages": [speaker.language], "speakers": [*speaker.speakers]}
    entry |= {"folder": out.name, "mb": round(size / 1e6, 1)}
    entry |= {name: facts[name].rstrip(".") for name in ("licence", "consent")}
    log.info("published      %s of %s; fill in what README.md leaves open", out, run)
    log.info("index entry    %s", json.dumps({out.name: entry}, ensure_ascii=False))


def write_samples(speaker: ExportedSpeaker, texts: Sequence[str], folder: Path) -> list[str]:
    """Write each text by each speaker; return the files, in the folder."""
    (folder / "samples").mkdir()
    names = []
    for number, text in enumerate(texts, 1):
        for name in speaker.speakers:
            names.append(f"samples/{number}-{name}.ogg")
            write_sentences(folder / names[-1], speaker.speak(text, name))
    return names


def write_weights(trained: TrainedRun, folder: Path) -> None:
    """Write the weights that inference uses as a run, without names of speakers and of files."""
    record = trained.record
    own = {setting.name: setting.default for setting in marked(PER_MACHINE)}
    settings = with_values(record.settings, own)
    changes: dict[str, Any] = {"settings": settings, "speakers": (), "best": None, "teacher": None}
    changes |= {"pending_observations": (), "participants": (), "ancestor": None}
    run = RunFolder(folder)
    run.checkpoints.mkdir(parents=True)
    target = run.checkpoints / trained.checkpoint.path.name
    groups = [(record.weights_group, trained.weights().items())]
    write_checkpoint(target, groups, record.model_copy(update=changes))
    write_whole(run.config, dump(settings).encode())


def card_facts(trained: TrainedRun, folder: Path, text: str) -> dict[str, Any]:
    """Return what the model card says of a run."""
    record, facts = trained.record, read_facts(trained.path)
    file = trained.path / "evaluation" / trained.checkpoint.path.name / "scores.md"
    scores = file.read_text("utf-8") if file.is_file() else "Not measured."
    reader, graph = record.frontend.reader, read_voice(folder)[0].relative_to(folder)
    piper = ""
    if record.frontend.kind in PLAYED:
        piper = f'python -m piper -m {graph} -f hello.wav "{text}"\n'
    by = f"{reader.package} {record.frontend_version}".strip()
    return {
        "reads": ", ".join(filter(None, (record.frontend.kind, by, reader.licence))),
        "piper": piper,
        "name": trained.path.name,
        "commit": facts.get("commit") or "FILL IN",
        "size": record.settings.model.model_size,
        "step": record.step,
        "hours": record.audio_s / 3600,
        "corpus": Path(record.settings.data.train_data or "FILL IN").name,
        "utterances": facts.get("utterances", "FILL IN"),
        "text": text,
        "checksums": CHECKSUMS,
        "scores": scores,
        **origin(facts.get("ancestry") or {}),
    }


def origin(ancestry: dict[str, Any]) -> dict[str, str]:
    """Return what the model card says of consent and data, from the corpus.json of a corpus."""
    if "speakers" not in ancestry:
        consent = "Who has agreed to the publication of their voice, when, for which uses."
        found = ""
        if made := ancestry.get("recordings"):
            left = ", ".join(f"{count} {reason}" for reason, count in made["left_out"].items())
            found = f"; {made['rows']} stretches of {made['hours']:.2f} h of recordings, with texts"
            found += f" {made['texts']}; left out: {left or 'nothing'}"
        return {"consent": f"FILL IN. {consent}", "data": f"FILL IN{found}"}
    consents, data = [], [f"texts: {ancestry['texts']['from'] or 'FILL IN'}"]
    of_model, own = defaultdict(list), ("name", "voice", "clips")
    for speaker in ancestry["speakers"]:
        of_model[tuple(value for name, value in speaker.items() if name not in own)].append(speaker)
    for speaker, *others in of_model.values():
        voices = ", ".join(of["voice"] for of in (speaker, *others) if of["voice"])
        name = " ".join(filter(None, (speaker["model"], speaker["version"], voices)))
        consents.append(f"{name}: {speaker['consent'] or 'FILL IN whose voice it is'}")
        licence = speaker["licence"] or "FILL IN its licence"
        digest = speaker["sha256"] or "unknown"
        data.append(f"{name}, {licence}, from {speaker['source']}, SHA-256 {digest}")
    return {
        "consent": f"other voices have spoken the corpus. {'; '.join(consents)}.",
        "data": "; spoken by ".join([data[0], " and by ".join(data[1:])]),
    }
