"""The local server of ``attractor explore``: the page, and what a browser cannot compute.

It listens on 127.0.0.1 only. A page of another site that the user visits could send requests to it, and a name of such a site could be
resolved to 127.0.0.1; therefore the Host and the Origin of every request are checked, and requests need a key. The page gets the key
once, in exchange for the token in the address that the command prints. Computations run in worker processes, which can be ended.
"""

from __future__ import annotations

import errno
import json
import re
import secrets
import select
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from attractor.errors import InputError
from attractor.explorer.pool import BusyError, Pool
from attractor.explorer.system import Start, System

HOST = "127.0.0.1"
MAX_BODY = 8 << 20  # bytes of a request
MAX_CONNECTIONS = 96
MAX_LARGE = 4  # requests with long bodies at once
LARGE_BODY = 1 << 16
MAX_CLIENTS = 256  # whose last run is remembered
READ_SECONDS, WRITE_SECONDS = 10.0, 30.0  # for a request, and for each part of an answer
WAIT_SECONDS = 60.0  # for a free worker, which may have to import torch first
SECONDS = {
    "run": 900.0,
    "predict": 60.0,
    "describe": 20.0,
    "models": 30.0,
    "model": 180.0,
    "head": 180.0,
}  # of each computation


class Task:
    """A computation for a client, which the next one of the same kind cancels."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.done = threading.Event()


class Explorer(HTTPServer):
    """The server.

    Parameters
    ----------
    page : the HTML document.
    port : 0 for a free one.
    models : names and folders of the models that may be opened.
    announce : called with a new address whenever the last one was used.
    """

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"  # there it would share the port with another process
    request_queue_size = 64

    def __init__(
        self,
        page: str,
        port: int = 0,
        *,
        models: tuple[str, ...] = (),
        announce: Callable[[str], object] = lambda address: None,
        debug: bool = False,
    ) -> None:
        self.page = page.encode("utf-8")
        self.policy = content_security_policy(page)
        self.models, self.announce, self.debug = models, announce, debug
        self.key, self.token = secrets.token_urlsafe(32), secrets.token_urlsafe(24)
        self.pools = {"run": Pool(2, debug=debug), "ask": Pool(1, debug=debug)}
        self.connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self.large = threading.BoundedSemaphore(MAX_LARGE)
        self.tasks: OrderedDict[tuple[str, str], Task] = OrderedDict()
        self.lock = threading.Lock()
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise _bind_error(error, port) from None
        except OverflowError:
            raise InputError(
                f"--port {port} is not a port: give a number from 1 to 65535, or 0 for a free one"
            ) from None
        self.port = self.server_address[1]
        self.hosts = {f"{HOST}:{self.port}", f"localhost:{self.port}"}

    @property
    def address(self) -> str:
        """The address to open; it works once."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def exchange(self, token: str) -> str | None:
        """Return the key for the token, which is spent by that, or None for a wrong one."""
        with self.lock:
            if not secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
                return None
            self.token = secrets.token_urlsafe(24)
        self.announce(self.address)
        return self.key

    def begin(self, client: str, kind: str) -> Task:
        """Register a task and cancel the one that this client has."""
        task, place = Task(), (client, kind)
        with self.lock:
            before = self.tasks.pop(place, None)
            self.tasks[place] = task
            while len(self.tasks) > MAX_CLIENTS:
                self.tasks.popitem(last=False)[1].cancelled.set()
        if before is not None:
            before.cancelled.set()
            before.done.wait(WAIT_SECONDS)
        return task

    def end(self, client: str, kind: str, task: Task) -> None:
        """Forget a task that is done."""
        task.done.set()
        with self.lock:
            if self.tasks.get((client, kind)) is task:
                del self.tasks[client, kind]

    # ------------------------------------------------------------------ connections

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; close the connection at once if there are too many."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            threading.Thread(target=self._answer, args=(request, client_address), daemon=True).start()
        except RuntimeError:  # no further thread can be started
            self.connections.release()
            self.shutdown_request(request)

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the client left
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a defect of the server on stderr."""
        error = sys.exc_info()[1]
        sys.stderr.write(f"attractor explore: internal error, {type(error).__name__}: {error}\n")
        if self.debug:
            super().handle_error(request, client_address)

    def warm(self) -> None:
        """Start workers before they are needed, and let one import the theorems."""
        for pool in self.pools.values():
            pool.warm()
        threading.Thread(target=self._warm_theory, daemon=True).start()

    def _warm_theory(self) -> None:
        body = json.dumps({"system": System(start=Start(tokens=2)).to_json()})
        with suppress(BusyError), self.pools["ask"].worker(lambda: False, 0.0) as worker:
            for _ in worker.answer("predict", body, lambda: False, SECONDS["predict"]):
                pass

    def close(self) -> None:
        """End all computations and free the port."""
        with self.lock:
            tasks = list(self.tasks.values())
        for task in tasks:
            task.cancelled.set()
        self.server_close()
        for pool in self.pools.values():
            pool.close()


def _bind_error(error: OSError, port: int) -> InputError:
    if error.errno in (errno.EADDRINUSE, errno.EACCES) or getattr(error, "winerror", None) in (10013, 10048):
        why = "may not be used" if error.errno == errno.EACCES else "is taken by another program"
        return InputError(f"port {port} {why}: give another --port, or leave it out for a free one")
    return InputError(f"the server cannot listen on {HOST}, port {port}: {error.strerror or error}")


def content_security_policy(page: str) -> str:
    """Return the policy in the head of a page, with what only a header can say; nothing is allowed without one."""
    found = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    inline = "default-src 'none'" if found is None else found[1]
    return f"{inline}; frame-ancestors 'none'"


class RequestError(Exception):
    """A request that is rejected, with its status and one sentence."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Handler(BaseHTTPRequestHandler):
    """Answers one request; every connection is closed after it."""

    server: Explorer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    timeout = READ_SECONDS

    def version_string(self) -> str:
        return "attractor"

    def log_message(self, format: str, *arguments: Any) -> None:
        if self.server.debug:
            sys.stderr.write(
                f"{format % arguments}\n".replace(self.server.token, "...").replace(self.server.key, "...")
            )

    def handle(self) -> None:
        self.close_connection = True
        self.handle_one_request()

    def handle_one_request(self) -> None:
        """Read and answer one request; it must arrive within some seconds as a whole."""
        stop = threading.Timer(READ_SECONDS, self._give_up)
        stop.daemon = True
        self.waiting = stop
        stop.start()
        try:
            super().handle_one_request()
        finally:
            stop.cancel()
            self.close_connection = True

    def _give_up(self) -> None:
        """Close a connection whose request arrives too slowly."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer malformed requests, which http.server finds, as all others."""
        self._send_json(HTTPStatus(code), {"error": message or HTTPStatus(code).phrase})

    def do_GET(self) -> None:
        self._handle({"/": self._send_page, "/favicon.ico": self._send_nothing, "/api/models": self._list_models})

    def do_HEAD(self) -> None:
        self._handle({"/": self._send_page, "/favicon.ico": self._send_nothing})

    def do_POST(self) -> None:
        tasks = {f"/api/{name}": self._compute for name in ("run", "predict", "describe", "model", "head")}
        self._handle({"/api/session": self._open_session, **tasks})

    # ------------------------------------------------------------------ checks

    def _handle(self, routes: dict[str, Callable[[], None]]) -> None:
        try:
            path = self.path.partition("?")[0]
            self._check_origin()
            if path not in routes:
                raise RequestError(HTTPStatus.NOT_FOUND, "there is nothing at this address")
            if path.startswith("/api/") and path != "/api/session":
                self._check_key()
            routes[path]()
        except RequestError as error:
            self._send_json(error.status, {"error": error.message})

    def _check_origin(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].strip().lower() not in self.server.hosts:
            raise RequestError(HTTPStatus.FORBIDDEN, "this server answers to its own address on this machine only")
        origins = self.headers.get_all("Origin", [])
        if any(origin not in {f"http://{host}" for host in self.server.hosts} for origin in origins):
            raise RequestError(HTTPStatus.FORBIDDEN, "requests from other sites are rejected")
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        if self.path.startswith("/api/") and site not in ("same-origin", "none"):
            raise RequestError(HTTPStatus.FORBIDDEN, "requests from other sites are rejected")

    def _check_key(self) -> None:
        given = self.headers.get("X-Attractor-Key", "")
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self.server.key.encode()):
            raise RequestError(
                HTTPStatus.FORBIDDEN,
                "the key of this page is not valid: open the address that attractor explore prints",
            )

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") is not None:
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "a request must state its length")
        if self.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a request must be application/json")
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) != 1 or not re.fullmatch(r"[0-9]{1,12}", lengths[0].strip()):
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "a request must state its length")
        length = int(lengths[0])
        if length > MAX_BODY:
            raise RequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {MAX_BODY:,} bytes, this one {length:,}"
            )
        body = self.rfile.read(length)
        self.waiting.cancel()
        if len(body) != length:
            raise RequestError(HTTPStatus.BAD_REQUEST, "the request is shorter than it states")
        return body

    def _read_json(self) -> dict[str, Any]:
        try:
            found = json.loads(self._read_body(), parse_constant=_reject_constant)
        except (ValueError, RecursionError):
            raise RequestError(HTTPStatus.BAD_REQUEST, "the request is not JSON") from None
        if not isinstance(found, dict):
            raise RequestError(HTTPStatus.BAD_REQUEST, "the request must be a JSON object")
        return found

    def _client(self) -> str:
        client = self.headers.get("X-Attractor-Client", "")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", client):
            raise RequestError(
                HTTPStatus.BAD_REQUEST, "the header X-Attractor-Client must name the page: letters and digits"
            )
        return client

    # ------------------------------------------------------------------ answers

    def _send_head(self, status: HTTPStatus, kind: str, length: int | None) -> None:
        self.waiting.cancel()
        self.connection.settimeout(WRITE_SECONDS)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in (
            ("Connection", "close"),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", self.server.policy if kind.startswith("text/html") else "default-src 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()

    def _send_bytes(self, status: HTTPStatus, kind: str, data: bytes) -> None:
        self._send_head(status, kind, len(data))
        if self.command != "HEAD":
            self.wfile.write(data)

    def _send_json(self, status: HTTPStatus, row: Any) -> None:
        self._send_bytes(status, "application/json", json.dumps(row).encode("utf-8"))

    def _send_page(self) -> None:
        found = re.search(r"[?&]token=([^&]*)", self.path)
        if found is not None and not secrets.compare_digest(found[1].encode(), self.server.token.encode()):
            text = (
                "This address was used already, or is not complete: open the last one that attractor explore printed.\n"
            )
            self._send_bytes(HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", text.encode())
            return
        self._send_bytes(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)

    def _send_nothing(self) -> None:
        self._send_head(HTTPStatus.NO_CONTENT, "image/x-icon", None)

    def _open_session(self) -> None:
        key = self.server.exchange(str(self._read_json().get("token", "")))
        if key is None:
            raise RequestError(
                HTTPStatus.FORBIDDEN, "this address was used already: open the last one that attractor explore printed"
            )
        self._send_json(HTTPStatus.OK, {"key": key})

    def _list_models(self) -> None:
        self._run_task("models", b"{}")

    def _compute(self) -> None:
        name, length = self.path.partition("?")[0].removeprefix("/api/"), self.headers.get("Content-Length", "")
        if len(length) > len(str(LARGE_BODY)) or not length.isdecimal() or int(length) <= LARGE_BODY:
            self._run_task(name, self._read_body())
            return
        if not self.server.large.acquire(timeout=READ_SECONDS / 2):
            raise RequestError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the server is busy with other large requests; try again"
            )
        try:
            self._run_task(name, self._read_body())
        finally:
            self.server.large.release()

    def _run_task(self, name: str, body: bytes) -> None:
        """Let a worker compute, and send what it answers."""
        self.waiting.cancel()  # the request has arrived
        client, kind = self._client(), "run" if name == "run" else "ask"
        try:
            value = json.loads(body, parse_constant=_reject_constant)
        except (ValueError, RecursionError):
            raise RequestError(HTTPStatus.BAD_REQUEST, "the request is not JSON") from None
        if not isinstance(value, dict):
            raise RequestError(HTTPStatus.BAD_REQUEST, "the request must be a JSON object")
        if name in ("model", "models", "head"):
            value = {**value, "models": list(self.server.models)}
        task = self.server.begin(client, name)

        def stopped() -> bool:
            return task.cancelled.is_set() or self._has_left()

        try:
            with self.server.pools[kind].worker(stopped, WAIT_SECONDS) as worker:
                answers = worker.answer(name, json.dumps(value), stopped, SECONDS[name])
                if kind == "run":
                    self._stream(answers)
                else:
                    self._send_answer(answers)
        except BusyError:
            raise RequestError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "all workers of the server are busy; try again when another run has ended",
            ) from None
        finally:
            self.server.end(client, name, task)

    def _stream(self, answers: Any) -> None:
        self._send_head(HTTPStatus.OK, "application/x-ndjson", None)
        try:
            for line in answers:
                self.wfile.write(line.encode("utf-8"))
        finally:
            answers.close()

    def _send_answer(self, answers: Any) -> None:
        try:
            lines = list(answers)
        finally:
            answers.close()
        if not lines:
            raise RequestError(HTTPStatus.CONFLICT, "a newer request of this page took the place of this one")
        row = json.loads(lines[-1])
        if isinstance(row, dict) and row.get("kind") == "error":
            raise RequestError(HTTPStatus.UNPROCESSABLE_ENTITY, row["message"])
        self._send_bytes(HTTPStatus.OK, "application/json", lines[-1].encode("utf-8"))

    def _has_left(self) -> bool:
        """Whether the client has closed the connection."""
        try:
            if select.select([self.connection], [], [], 0)[0]:
                return not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True
        return False


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")
