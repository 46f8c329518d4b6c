"""Where a run starts: from nothing, its newest checkpoint, or weights of another run.

What comes in are the settings that the user gave, and the run folder. Before any device is used,
the main thread looks for a checkpoint to resume, for the pretrained run of --init-from and for the
teacher, reads their records, and checks that the settings fit them. What goes out is a Start: the
settings with all that other runs fix, and the sources of vocabulary, frontend and weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from myxtts.audio.format import audio_format, use_sample_rate
from myxtts.base.published import local_run
from myxtts.checkpoints import files as checkpoint_files
from myxtts.checkpoints.files import Ancestor
from myxtts.checkpoints.inherited import (
    apply_teacher_settings,
    check_same_settings,
    inherit_settings,
    keep_normaliser,
    open_teacher,
)
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.checkpoints.trained_run import TrainedRun, select_vocoder
from myxtts.config.schema import Config
from myxtts.corpus.build import frontend_of
from myxtts.corpus.manifest import Vocabulary
from myxtts.run.warm_start import Pretrained, check_freeze, read_pretrained
from myxtts.tasks.registry import length_rule_of
from myxtts.text.frontend import TextFrontend

# Instead of a digest, of the same length: workers compare digests digit by digit.
NO_TEXTS = "0" * 64


@dataclass(frozen=True)
class Start:
    """The settings of a run with all that other runs fix, and the source of its first weights.

    That is the run itself if it resumes, a pretrained run, or the seed. A teacher makes features.
    """

    config: Config
    folder: RunFolder
    resumed: TrainedRun | None = None
    pretrained: Pretrained | None = None
    teacher: TrainedRun | None = None

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The first rows of the run's vocabulary; a teacher fixes all symbols and languages."""
        if self.resumed:
            return self.resumed.record.inherited_vocabulary
        return self._source.inheritable_vocabulary if self._source else None

    @cached_property
    def frontend(self) -> TextFrontend:
        """The inherited frontend, or a new one, with the words of --lexicon; raises DataError."""
        if self.resumed:
            return self.resumed.record.frontend
        own = frontend_of(self.config.data)
        inherited = self._source and self._source.record.frontend
        if inherited and inherited.kind == own.kind:
            return inherited.with_words(own.lexicon)
        return own

    @property
    def frontend_version(self) -> str:
        """The version of the package that makes symbols of the run's texts, if one does."""
        if self.resumed:
            return self.resumed.record.frontend_version
        return self.frontend.reader.version if length_rule_of(self.config) else ""

    @property
    def _source(self) -> TrainedRun | None:
        if self.teacher or not self.pretrained:
            return self.teacher
        return self.pretrained.run

    @property
    def ancestor(self) -> Ancestor | None:
        """The entry for the pretrained run in the checkpoints of this run."""
        if self.resumed:
            return self.resumed.record.ancestor
        return self.pretrained.ancestor if self.pretrained else None


def resolve_start(config: Config, folder: RunFolder) -> Start:
    """Decide where a run starts from; raise ConfigError or CheckpointError if that does not fit.

    No corpus is read, and no pretrained run if the run has a checkpoint.
    """
    checkpoint_files.recover_interrupted_replace(folder.checkpoints)
    resumed = TrainedRun.newest(folder.path) if config.run.resume else None
    teacher = open_teacher(config.teacher.teacher, resumed)
    if teacher is not None:
        config = apply_teacher_settings(config, teacher)
    pretrained = None
    if config.training.init_from is not None:
        source = resumed
        if source is None:
            pretrained = read_pretrained(local_run(config.training.init_from), folder.path)
            source = pretrained.run
        config = inherit_settings(config, source)
    if resumed is not None:
        config = keep_normaliser(config, resumed)
        check_same_settings(resumed.checkpoint, config)
    check_freeze(config)
    use_sample_rate(config.data.sample_rate, str(folder.path))
    rate_format = audio_format(config.data.sample_rate)
    select_vocoder(folder.path, config.model.vocoder, rate_format)
    return Start(config, folder, resumed, pretrained, teacher)


def first_shares(start: Start, replicas: int) -> Sequence[float]:
    """Return the share of each replica in a step; for `auto` as the resumed run recorded them."""
    shares = start.config.data.batch_shares
    if shares != "auto":
        return shares
    if start.resumed and len(start.resumed.record.batch_shares) == replicas:
        return start.resumed.record.batch_shares
    return ()
