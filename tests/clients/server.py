"""A web server on the loopback: files with ranges, and as much of a model hub as its client asks for."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

REPOSITORY = "some/model"
COMMIT = "c" * 40


class Server:
    """`files` by name; `served` counts the bytes of files that were sent."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.served = 0
        self.url = ""


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    """Serves files at /plain/NAME and as a hub's repository, for the time of the block."""
    server = Server(files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(server, self, body=True)

        def do_HEAD(self) -> None:
            _answer(server, self, body=False)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        server.url = f"http://127.0.0.1:{web.server_address[1]}"
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            web.shutdown()
            thread.join()


def _answer(server: Server, request: BaseHTTPRequestHandler, *, body: bool) -> None:
    path = urlsplit(request.path).path
    api = f"/api/models/{REPOSITORY}"
    if path.startswith(f"{api}/tree/"):
        _send_json(request, [_listed(name, data) for name, data in server.files.items()], body)
    elif path == api or path.startswith(f"{api}/revision/"):
        siblings = [{"rfilename": name} for name in server.files]
        _send_json(request, {"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}, body)
    else:
        name = re.sub(rf"^/({REPOSITORY}/resolve/[^/]+|plain)/", "", path)
        if name in server.files:
            _send_file(server, request, server.files[name], body)
        else:
            request.send_error(404)


def _listed(name: str, data: bytes) -> dict[str, object]:
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": git}
    if name.endswith(".safetensors"):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


def _send_json(request: BaseHTTPRequestHandler, what: object, body: bool) -> None:
    text = json.dumps(what).encode()
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(text)))
    request.end_headers()
    if body:
        request.wfile.write(text)


def _send_file(server: Server, request: BaseHTTPRequestHandler, data: bytes, body: bool) -> None:
    begin, end = 0, len(data)
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if wanted is not None:
        begin, end = int(wanted[1]), min(end, int(wanted[2] or end) + bool(wanted[2]))
    request.send_response(200 if wanted is None else 206)
    if wanted is not None:
        request.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
    request.send_header("Accept-Ranges", "bytes")
    request.send_header("Content-Length", str(end - begin))
    request.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
    request.send_header("X-Repo-Commit", COMMIT)
    request.end_headers()
    if body:
        request.wfile.write(data[begin:end])
        server.served += end - begin
