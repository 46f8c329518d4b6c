"""Requests over HTTP and Wyoming, odd hosts, clients that leave, and files of voices."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from myxtts.extras.serve.desk import listen
from myxtts.speak.player import open_voice
from tests.robustness.cases import PROJECT, Case, Lab
from tests.robustness.cases.files import LFS

SPEECH, UPLOAD = "/v1/audio/speech", "/v1/audio/transcriptions"
JSON, FORM = "application/json", "multipart/form-data; boundary=B"
FORM_HEAD = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
UPLOAD_MB, HELD_MB = 200, 60
CLIENTS, WASTED_S = 64, 3.0
READY_S = 60.0
SPOKEN, TOO_LARGE = "200 audio/wav", "413 .*more than 25 MB.*"
UNSPOKEN = "400 .*no letter and no digit that is spoken.*"
MARK = "{text}"

# Name: fields that differ from those of a plain request, or a body, and what is right.
BODIES: dict[str, tuple[dict | bytes, str]] = {
    "plain": ({}, SPOKEN),
    "empty": ({"input": ""}, "400 input: .*at least 1 character.*"),
    "spaces": ({"input": "   "}, UNSPOKEN),
    "dots": ({"input": "..."}, UNSPOKEN),
    "emoji alone": ({"input": "\U0001f600"}, UNSPOKEN),
    "emoji in a text": ({"input": f"{MARK} \u2764\ufe0f"}, SPOKEN),
    "another script": ({"input": "\u4f60\u597d"}, "400 espeak-ng cannot read 你.*"),
    "a word of another script": ({"input": f"\u4f60\u597d, {MARK}"}, SPOKEN),
    "markdown": ({"input": f"**{MARK}** # `a`"}, SPOKEN),
    "lone surrogate": (
        b'{"input": "A \\ud83d lamp", "response_format": "wav"}',
        "400 the request: Invalid JSON.*",
    ),
    "NUL": ({"input": f"\0{MARK}"}, SPOKEN),
    "open phonemes": ({"input": f"[[ {MARK}"}, SPOKEN),
    "a voice of another server": ({"voice": "alloy"}, "400 .*Use one of low, high.*"),
    "a path as voice": ({"voice": "../../etc/passwd"}, "400 .*Use one of low, high.*"),
    "no voice": ({"voice": None}, "400 voice: .*string.*"),
    "an object as voice": ({"voice": {"id": "x"}}, "400 voice: .*string.*"),
    "speed 0": ({"speed": 0}, "400 speed: .*0.25.*"),
    "speed NaN": (b'{"input": "A lamp", "speed": NaN}', "400 speed: .*"),
    "speed as text": ({"speed": "1.0"}, SPOKEN),
    "unknown format": ({"response_format": "aac"}, "400 response_format: .*"),
    "a stream of events": ({"stream_format": "sse"}, "400 stream_format: .*'audio'.*"),
    "instructions": ({"instructions": "whisper"}, SPOKEN),
    "a number as text": ({"input": 5}, "400 input: .*string.*"),
    "a list of texts": ({"input": ["A lamp"]}, "400 input: .*string.*"),
    "a reference": ({"reference": "AAAA"}, "400 .*fixed speakers.*"),
    "4,097 characters": ({"input": "a" * 4097}, "400 input: .*at most 4096.*"),
    "a form": (b"input=hello&voice=", "400 the request: Invalid JSON.*"),
    "an array": (b"[]", "400 the request: Input should be an object.*"),
    "half of an object": (b"{", "400 the request: Invalid JSON.*"),
    "nothing": (b"", "400 the request: Invalid JSON.*"),
    "26 MB": (b"x" * 26_000_000, TOO_LARGE),
}
PATHS = {
    "GET " + SPEECH: "405.*",
    "GET /v1": "404.*",
    "POST " + UPLOAD: "400 there is no recording.*",
}
# Name: rate, width and channels of a recording over Wyoming, its bytes, and what is right.
SECOND = {
    "16 bits": (2, 1),
    "32 bits": (4, 1),
    "24 bits": (3, 1),
    "8 bits": (1, 1),
    "stereo": (2, 2),
}
FAULTS = {
    "half a sample": (16_000, 2, 1, 16_001, "error 16001 bytes are no whole samples.*"),
    "no channel": (16_000, 2, 0, 18, "error channels: .*"),
    "no rate": (0, 2, 1, 32_000, "error rate: .*"),
    "a negative rate": (-5, 2, 1, 32_000, "error rate: .*"),
    "width 7": (16_000, 7, 1, 32_000, "error width: .*"),
    "400 MB": (16_000, 2, 1, 400_000_000, "error .*more than 25 MB.*"),
}
HOSTS = {
    **dict.fromkeys(("127.0.0.1", "localhost", "::1", "::"), "listens"),
    **dict.fromkeys(("http://127.0.0.1", "[::1]", "127.0.0.1:80", "no.such.host.invalid"), "error: --host .*"),
}  # fmt: skip


class Server:
    """`myxtts serve` of the voice of a lab, in a process."""

    def __init__(self, lab: Lab):
        self._lab = lab
        self.text = lab.rows[0][1]

    @cached_property
    def _process(self) -> subprocess.Popen:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.wyoming_port = free.getsockname()[1]
        command = [sys.executable, "-m", "myxtts", "serve", "--voice", str(self._lab.voice)]
        command += ["--port", "0", "--wyoming-port", str(self.wyoming_port)]
        process = subprocess.Popen(
            command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for line in process.stdout or ():
            if found := re.search(r"http://[^:]+:(\d+)", line):
                self.port = int(found[1])
                return process
        raise RuntimeError("the server ended")

    def end(self) -> None:
        if "_process" in self.__dict__:
            self._process.terminate()
            self._process.communicate()

    def answer(
        self, method: str, path: str, body: bytes | Iterable[bytes] = b"", kind: str = JSON
    ) -> str:
        """Return status, and message of an error or kind of the content."""
        assert self._process.poll() is None
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READY_S)
        # Too large a body is answered before all of it was sent.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, path, body, {"Content-Type": kind})
        found = connection.getresponse()
        content = found.read()
        form = found.headers["content-type"].partition(";")[0]
        if found.status == 200:
            return f"200 {form}" if len(content) > 1_000 else "200 without a sound"
        message = content.decode()
        if form == JSON:
            message = json.loads(content)["error"]["message"]
        return f"{found.status} {message}"

    def speech(self, given: dict | bytes) -> str:
        if isinstance(given, dict):
            plain = {"model": "m", "voice": "low", "input": self.text, "response_format": "wav"}
            given = json.dumps(plain | given).replace(MARK, self.text).encode()
        return self.answer("POST", SPEECH, given)

    def wyoming(self, events: Sequence[tuple[str, dict, bytes]]) -> str:
        """Return type and text of the first event of the answer."""
        assert self._process.poll() is None
        with socket.create_connection(("127.0.0.1", self.wyoming_port), READY_S) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                for kind, data, payload in events:
                    head = {"type": kind, "data": data, "payload_length": len(payload)}
                    connection.sendall(json.dumps(head).encode() + b"\n" + payload)
            with connection.makefile("rb") as answer:
                head = json.loads(answer.readline() or b'{"type": "nothing"}')
                data = json.loads(answer.read(head.get("data_length", 0)) or b"{}")
        return f"{head['type']} {data.get('text', '')}".strip()

    def spoken(self, text: str, **voice: str) -> str:
        return self.wyoming([("synthesize", {"text": text, "voice": voice}, b"")])

    def recording(self, rate: int, width: int, channels: int, size: int) -> str:
        form = {"rate": rate, "width": width, "channels": channels}
        parts = [min(10_000_000, size - first) for first in range(0, size, 10_000_000)]
        chunks = [("audio-chunk", form, bytes(part)) for part in parts]
        return self.wyoming([("audio-start", form, b""), *chunks, ("audio-stop", {}, b"")])

    def held_by_upload(self) -> str:
        """Return whether an upload without a length is refused, and memory is not held."""
        self.speech({})
        before_mb = self._resident_mb()
        parts = iter([FORM_HEAD, *[bytes(1_000_000)] * UPLOAD_MB, b"\r\n--B--\r\n"])
        answer = self.answer("POST", UPLOAD, parts, FORM)
        held_mb = self._resident_mb() - before_mb
        held = "held little" if held_mb < HELD_MB else f"held {held_mb:.0f} MB"
        return f"{answer}; {held}"

    def after_clients_left(self) -> str:
        """Return the answer to a client after many that left, and whether they were spoken."""
        self.speech({})
        body = json.dumps({"input": f"{self.text} " * 20, "voice": "low"}).encode()
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
        before_s = self._processor_s()
        for _ in range(CLIENTS):
            with socket.create_connection(("127.0.0.1", self.port)) as left:
                left.sendall(head % (SPEECH.encode(), JSON.encode(), len(body)) + body)
        time.sleep(0.5)
        answer = self.speech({})
        wasted_s = self._processor_s() - before_s
        wasted = "little work" if wasted_s < WASTED_S else f"{wasted_s:.1f} s of work"
        return f"{answer}; {wasted}"

    def _resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 1e6

    def _processor_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def voice_files(lab: Lab) -> dict[str, tuple[Callable[[Path, Path], object], str]]:
    """Return what is done to the graph and the JSON of a voice, and what is right."""
    piper = json.dumps({"phoneme_id_map": {}, "audio": {"sample_rate": 22_050}})
    return {
        "renamed": (lambda graph, about: graph.rename(graph.with_name("a.onnx")), "error: .*is missing; .* belong together.*"),
        "of Piper": (lambda graph, about: about.write_text(piper), "error: .*a voice of Piper.*"),
        "Git LFS": (lambda graph, about: graph.write_bytes(LFS), "error: .*git lfs pull.*"),
        "half of JSON": (lambda graph, about: about.write_text("{"), "error: .*is no JSON.*"),
        "no file": (lambda graph, about: [*map(Path.unlink, graph.parent.glob("*.onnx"))], "error: .*has no file.*"),
        "untouched": (lambda graph, about: None, "opens"),
    }  # fmt: skip


def _opened(lab: Lab, name: str, change: Callable[[Path, Path], object]) -> str:
    folder = lab.folder / "voices" / name
    shutil.copytree(lab.voice, folder)
    graph = min(folder.glob("*.onnx"), key=lambda file: len(file.name))
    change(graph, graph.with_name(f"{graph.name}.json"))
    open_voice(folder)
    return "opens"


def _listened(host: str) -> str:
    with listen(host, 0, "--port"):
        return "listens"


def cases(lab: Lab) -> Iterator[Case]:
    server = Server(lab)
    for name, (given, expected) in BODIES.items():
        yield Case("speech", name, expected, lambda g=given: server.speech(g))
    for path, expected in PATHS.items():
        yield Case("paths", path, expected, lambda p=path: server.answer(*p.split()))
    yield Case(
        "clients", "an upload without a length", f"{TOO_LARGE}; held little", server.held_by_upload
    )
    yield Case("clients", "64 that leave", f"{SPOKEN}; little work", server.after_clients_left)
    for name, (width, channels) in SECOND.items():
        size = 16_000 * width * channels
        yield Case(
            "Wyoming",
            name,
            "error .*--recogniser.*",
            lambda w=width, c=channels, s=size: server.recording(16_000, w, c, s),
        )
    for name, (*form, expected) in FAULTS.items():
        yield Case("Wyoming", name, expected, lambda f=form: server.recording(*f))
    yield Case("Wyoming", "a text", "audio-start", lambda: server.spoken(server.text))
    yield Case(
        "Wyoming",
        "an unknown speaker",
        "error .*Use one of.*",
        lambda: server.spoken(server.text, name="exported", speaker="x"),
    )
    for text in ("", "...", "\U0001f600"):
        yield Case(
            "Wyoming", text, UNSPOKEN.replace("400", "error"), lambda t=text: server.spoken(t)
        )
    yield Case(
        "Wyoming",
        "5,000 characters",
        "error .*Give 4096 at most.*",
        lambda: server.spoken("a" * 5_000),
    )
    yield Case(
        "Wyoming",
        "no text",
        "error synthesize cannot be used.*",
        lambda: server.wyoming([("synthesize", {}, b"")]),
    )
    server.end()
    for host, expected in HOSTS.items():
        yield Case("hosts", host, expected, lambda h=host: _listened(h))
    for name, (change, expected) in voice_files(lab).items():
        yield Case("files of a voice", name, expected, lambda n=name, c=change: _opened(lab, n, c))
