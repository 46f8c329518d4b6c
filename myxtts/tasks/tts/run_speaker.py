"""A run, which may still train, as what a server speaks with."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from myxtts.audio.audio_file import REFERENCE, check_recording
from myxtts.checkpoints.files import latest
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.speak.chunks import SpokenSentence
from myxtts.speak.player import choose_speaker


class RunSpeaker:
    """A run; see `Speaker`.

    Its speakers are the keys of `references`, or the learned default. Arguments as in
    `Synthesizer`; without a checkpoint, the newest is used.
    """

    takes_reference = has_times = True
    threads = 1

    def __init__(
        self,
        run: Path,
        references: Mapping[str, Sequence[Path]] | None = None,
        language: str | None = None,
        vocoder: str | None = None,
        checkpoint: str | None = None,
    ):
        trained = TrainedRun.open_for_use(run, task="tts")
        self.name, self._run = run.name, run
        self.language = trained.record.choose_language(language)
        self._references = references or {"default": ()}
        for recordings in self._references.values():
            for recording in recordings:
                check_recording(recording, REFERENCE)
        self.speakers: Sequence[str] = [*self._references]
        self._vocoder, self._fixed, self._checkpoint = vocoder, checkpoint, ""
        # This and the import in `refresh` load TensorFlow.
        from myxtts.placement import devices

        self._device = devices.configure_default().routes[0].model
        self.refresh()

    def speak(
        self, text: str, speaker: str = "", speed: float = 1.0, reference: Path | None = None
    ) -> Iterator[SpokenSentence]:
        name = self.speakers[choose_speaker(speaker, self.speakers)]
        references = self._references[name] if reference is None else [reference]
        options = replace(self._synthesizer.options, speed=speed)
        return self._synthesizer.speak(text, references, self.language, options)

    def refresh(self) -> None:
        # Without any checkpoint, Synthesizer raises the error.
        newest = latest(self._run / "checkpoints") or Path()
        name = self._fixed or newest.name
        if name == self._checkpoint:
            return
        from myxtts.tasks.tts.synthesizer import Synthesizer

        self._synthesizer = Synthesizer(self._run, self._device, self._vocoder, checkpoint=name)
        self._checkpoint = name
