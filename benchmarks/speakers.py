"""Rate speakers, each in a process of its own, by the same texts: what they sound like, what a
recogniser hears, and what a second of speech costs.

    python benchmarks/speakers.py --texts data/en/judging.txt hibari en voices/joe.onnx

A speaker is a name for `myxtts corpus --speaker`. Time is the processor's, of one core, after a
text that is not counted. DNSMOS and pocketsphinx are those of `myxtts evaluate`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from myxtts.config.parser import bounded

COLUMNS = "P.808", "overall", "word errors", "core s a second", "seconds"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("speakers", nargs="+", metavar="SPEAKER")
    add("--texts", type=Path, required=True, help="file with a text in each line")
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
    command += ["--utterances", str(options.utterances)]
    if options.out:
        command += ["--out", str(options.out)]
    for name in options.speakers:
        environ = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [*command, name], env=environ, stdout=subprocess.PIPE, text=True, check=True
        )
        p808, overall, errors, cost, seconds = json.loads(done.stdout.splitlines()[-1])
        figures = f"{p808:.2f} | {overall:.2f} | {100 * errors:.1f} % | {cost:.4f} | {seconds:.0f}"
        print(f"| {name} | {figures} |", flush=True)


def rated(options: argparse.Namespace) -> list[float]:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    import jiwer
    import numpy as np
    import soundfile

    from myxtts.audio.format import use_sample_rate
    from myxtts.extras.speakers.speaker import open_speaker
    from myxtts.tasks.evaluation.metrics import dnsmos
    from myxtts.tasks.evaluation.recognisers import Pocketsphinx

    (name,) = options.speakers
    texts = options.texts.read_text("utf-8").splitlines()[: options.utterances]
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
    judge, seconds = Pocketsphinx(), sum(map(len, waves)) / rate_hz
    written = [judge.normalise_reference(text, speaker.language) for text in texts]
    judged = [number for number, text in enumerate(written) if text]
    heard = [*judge.transcribe(waves[number] for number in judged)]
    errors = jiwer.wer([written[number] for number in judged], heard)
    p808, overall = np.mean([[*dnsmos(wave).values()][:2] for wave in waves], axis=0)
    return [float(p808), float(overall), float(errors), spent_s / seconds, seconds]


if __name__ == "__main__":
    main()
