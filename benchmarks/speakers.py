"""Rate speakers, each in a process of its own, by the same texts: what they sound like, what a
recogniser hears, and what a second of speech costs.

    python benchmarks/speakers.py --texts data/en/judging.txt hibari en voices/joe.onnx

A speaker is a name for `myxtts corpus --speaker`. Time is the processor's, of one core, after a
text that is not counted. DNSMOS and the recogniser are those of `myxtts evaluate`. A tab in a line
of the texts separates what is spoken from what the recogniser should write, if that differs.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from myxtts.config.parser import bounded

COLUMNS = "P.808", "overall", "word errors", "character errors", "core s a second", "seconds"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("speakers", nargs="+", metavar="SPEAKER")
    add("--texts", type=Path, required=True, help="file with a text in each line")
    add("--recogniser", default="pocketsphinx", help="as `myxtts evaluate --asr`, such as a run")
    add("--utterances", type=bounded(int, 1), default=100, help="texts, the first ones")
    add("--out", type=Path, help="folder for the waves")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.worker:
        print(json.dumps(rated(options)))
        return
    print(f"| speaker | {' | '.join(COLUMNS)} |\n|---{'|---:' * len(COLUMNS)}|")
    command = [sys.executable, __file__, "--worker", "--texts", str(options.texts)]
    command += ["--utterances", str(options.utterances), "--recogniser", options.recogniser]
    if options.out:
        command += ["--out", str(options.out)]
    for name in options.speakers:
        environ = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [*command, name], env=environ, stdout=subprocess.PIPE, text=True, check=True
        )
        p808, overall, *errors, cost, seconds = json.loads(done.stdout.splitlines()[-1])
        figures = [f"{p808:.2f}", f"{overall:.2f}", *(f"{100 * share:.1f} %" for share in errors)]
        figures += [f"{cost:.4f}", f"{seconds:.0f}"]
        print(f"| {name} | {' | '.join(figures)} |", flush=True)


def rated(options: argparse.Namespace) -> list[float]:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    import jiwer
    import numpy as np
    import soundfile

    from myxtts.audio.format import use_sample_rate
    from myxtts.extras.speakers.speaker import open_speaker
    from myxtts.tasks.evaluation.metrics import dnsmos
    from myxtts.tasks.evaluation.recognisers import open_recogniser

    (name,) = options.speakers
    lines = options.texts.read_text("utf-8").splitlines()[: options.utterances]
    texts = [line.split("\t")[0] for line in lines]
    speaker = open_speaker(name)
    _, rate_hz = speaker.speak(texts[0])
    use_sample_rate(rate_hz, name)
    began_s = time.process_time()
    waves = [speaker.speak(text)[0] for text in texts]
    spent_s = time.process_time() - began_s
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        for number, wave in enumerate(waves):
            file = options.out / f"{Path(name).stem}-{number:03d}.wav"
            soundfile.write(file, wave, rate_hz)
    seconds = sum(map(len, waves)) / rate_hz
    judge = open_recogniser(Path(options.recogniser), "/CPU:0")
    readings = [line.split("\t")[-1] for line in lines]
    written = [judge.normalise_reference(text, speaker.language) for text in readings]
    judged = [number for number, text in enumerate(written) if text]
    heard = [*judge.transcribe(waves[number] for number in judged)]
    spoken = [written[number] for number in judged]
    # A recogniser of another language judges none.
    errors = [rate(spoken, heard) if spoken else np.nan for rate in (jiwer.wer, jiwer.cer)]
    p808, overall = np.mean([[*dnsmos(wave).values()][:2] for wave in waves], axis=0)
    return [*map(float, (p808, overall, *errors)), spent_s / seconds, seconds]


if __name__ == "__main__":
    main()
