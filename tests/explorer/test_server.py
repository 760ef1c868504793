"""The explorer's local server: who is answered, what is bounded, and what is left behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attractor.cli.main import run as run_command
from attractor.explorer import SCHEMA, Explorer, build_page, server

SMALL: dict[str, Any] = {"schema": SCHEMA, "start": {"kind": "uniform", "tokens": 16, "seed": 0}, "until": 2.0}
ENDLESS = SMALL | {"start": {"kind": "uniform", "tokens": 3000, "seed": 0}, "kernel": "sinkhorn", "until": 1e5}


class Client:
    """Sends requests to a server as a page does."""

    def __init__(self, served: Explorer, name: str = "test") -> None:
        self.port = served.port
        self.headers = {"Content-Type": "application/json", "X-Attractor-Key": served.key, "X-Attractor-Client": name}

    def ask(self, method: str, path: str, body: Any = None, **headers: str | None) -> tuple[int, dict[str, str], bytes]:
        given = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, data, {name: value for name, value in given.items() if value is not None})
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        status, _, data = self.ask("POST", path, body)
        return status, json.loads(data)

    def run(self, system: Any, **options: Any) -> list[dict[str, Any]]:
        status, _, data = self.ask("POST", "/api/run", {"system": system, **options})
        assert status == 200, data
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture(scope="module")
def served() -> Iterator[Explorer]:
    found = Explorer(build_page(server={}))
    thread = threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.close()
    thread.join()


@pytest.fixture
def client(served: Explorer, request: pytest.FixtureRequest) -> Client:
    return Client(served)


@contextlib.contextmanager
def streaming(client: Client, system: Any) -> Iterator[socket.socket]:
    """A connection on which a run has begun."""
    body = json.dumps({"system": system})
    head = "".join(f"{name}: {value}\r\n" for name, value in client.headers.items())
    text = f"POST /api/run HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}"
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(text.encode())
        received = b""
        while b'"kind": "start"' not in received:
            received += (part := connection.recv(4096))
            assert part, received
        yield connection


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def read_memory(pid: int | str = "self") -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def worker_pids(served: Explorer) -> list[int]:
    return [worker.process.pid for pool in served.pools.values() for worker in pool._all]


def cpu_seconds(served: Explorer) -> float:
    """CPU time of this process and of the workers."""
    ticks = 0
    for pid in worker_pids(served):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")


# ---------------------------------------------------------------------- who is answered


def test_the_page_holds_no_secret_and_runs_under_its_policy(served: Explorer, client: Client) -> None:
    status, headers, data = client.ask("GET", f"/?token={served.token}", X_Attractor_Key=None)
    assert status == 200
    assert served.key.encode() not in data
    assert served.token.encode() not in data
    assert "Set-Cookie" not in headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    assert "script-src 'sha256-" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Python" not in headers["Server"]
    status, _, data = client.ask("HEAD", "/", X_Attractor_Key=None)
    assert (status, data) == (200, b"")


def test_the_token_is_exchanged_once(served: Explorer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[str] = []
    monkeypatch.setattr(served, "announce", announced.append)
    token = served.token
    assert client.post("/api/session", {"token": "x" * len(token)})[0] == 403
    assert client.post("/api/session", {"token": 3})[0] == 403
    assert client.post("/api/session", {"token": "é\ud800"})[0] == 403
    assert announced == []
    assert client.post("/api/session", {"token": token}) == (200, {"key": served.key})
    assert client.post("/api/session", {"token": token})[0] == 403
    assert announced == [served.address]
    assert token not in served.address
    assert client.ask("GET", f"/?token={token}")[0] == 403
    assert client.ask("GET", f"/?token={served.token}")[0] == 200
    assert client.ask("GET", "/")[0] == 200


FOREIGN: list[dict[str, str]] = [
    {"Host": "evil.example"},
    {"Host": "evil.example:{port}"},
    {"Host": "127.0.0.1"},
    {"Host": "127.0.0.1:1"},
    {"Host": "localhost.evil.example:{port}"},
    {"Host": "127.0.0.1:{port}@evil.example"},
    {"Host": ""},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1"},
    {"Origin": "https://127.0.0.1:{port}"},
    {"Origin": "http://127.0.0.1:{port}.evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"X-Attractor-Key": "x"},
    {"X-Attractor-Key": ""},
    {"X-Attractor-Key": "\xff\xfe"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_requests_of_others_are_rejected(client: Client, headers: dict[str, str]) -> None:
    given = {name: value.format(port=client.port) for name, value in headers.items()}
    status, _, data = client.ask("POST", "/api/describe", {"system": SMALL}, **given)
    assert status == 403, data
    assert "command" not in json.loads(data)


def test_own_names_of_this_machine_are_accepted(client: Client) -> None:
    for host in ("127.0.0.1", "localhost", "LOCALHOST"):
        place = f"{host}:{client.port}"
        headers = {"Host": place, "Origin": f"http://{place.lower()}", "Sec-Fetch-Site": "same-origin"}
        assert client.ask("POST", "/api/describe", {"system": SMALL}, **headers)[0] == 200


def test_it_listens_on_this_machine_only(served: Explorer) -> None:
    assert served.server_address[0] == "127.0.0.1"
    others = {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in others - {"127.0.0.1"}:
        with contextlib.closing(socket.socket()) as tried:
            tried.settimeout(1)
            assert tried.connect_ex((str(address), served.port)) != 0


def test_there_are_no_files(client: Client) -> None:
    for path in (
        "/etc/passwd",
        "/../server.py",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/page.html",
        "/api",
        "/api/run/x",
    ):
        for method in ("GET", "POST"):
            assert client.ask(method, path, {} if method == "POST" else None)[0] in (403, 404)
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        assert client.ask(method, "/")[0] == 501
    assert client.ask("GET", "/favicon.ico")[0] == 204
    status, answer = client.post("/api/model", {"name": "/etc", "text": "a b"})
    assert status == 422
    assert "not one of those offered" in answer["error"]


# ---------------------------------------------------------------------- what it computes


def test_a_run_is_streamed(client: Client) -> None:
    import attractor as at

    rows = client.run(SMALL, save=[0.0, 0.5, 2.0])
    kinds = [row["kind"] for row in rows if row["kind"] != "progress"]
    assert kinds == ["start", "frame", "frame", "frame", "end"]
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(16, 3), space="sphere", until=2.0, save=[0, 0.5, 2])
    frames = [row for row in rows if row["kind"] == "frame"]
    assert [frame["t"] for frame in frames] == [0.0, 0.5, 2.0]
    for frame, points in zip(frames, run.points.tolist(), strict=True):
        assert frame["points"] == points
    assert rows[-1]["outcome"]["name"] == "reached"
    assert rows[-1]["points"] == run.final.points.tolist()  # type: ignore[union-attr]


def test_many_tokens_are_sent_as_binary_numbers(client: Client) -> None:
    import base64

    import numpy as np

    import attractor as at

    system = SMALL | {"start": {"kind": "uniform", "tokens": 5000, "seed": 1}, "until": 0.01}
    rows = client.run(system, save=1, encoding="base64")
    first = next(row for row in rows if row["kind"] == "frame")
    points = np.frombuffer(base64.b64decode(first["points32"]), "<f4").reshape(5000, 3)
    assert np.array_equal(points, at.Tokens.uniform(5000, 3, 1).points.numpy().astype("<f4"))


def test_merges_are_reported(client: Client) -> None:
    rows = client.run(SMALL | {"beta": 4.0, "until": 1e4, "merge": 1e-6})
    merges = [row for row in rows if row["kind"] == "event"]
    assert merges
    assert {row["event"] for row in merges} == {"merge"}


def test_predictions_are_those_of_the_package(client: Client) -> None:
    import attractor as at

    status, answer = client.post("/api/predict", {"system": SMALL})
    assert status == 200
    law = at.Attention.isotropic(3, 1.0)
    found = at.predict(law, at.Tokens.uniform(16, 3), "sphere", until=2.0)
    assert {row["key"]: row["verdict"] for row in answer["theorems"]} == {
        item.theorem.key: item.verdict.value for item in found.findings
    }
    assert set(answer["fates"]) == set(found.fates)
    for row in answer["theorems"]:
        assert row["hypotheses"]
        assert row["source"]
        if row["applies"]:
            assert all(part["verdict"] == "holds" for part in row["hypotheses"])
    status, answer = client.post("/api/predict", {"system": SMALL | {"noise": 0.1, "step": 0.1}})
    assert (status, "without noise are left out" in answer["note"]) == (200, True)
    noisy = at.predict(law, at.Tokens.uniform(16, 3), "sphere", until=2.0, noise=at.Noise(0.1))
    assert {row["key"] for row in answer["theorems"] if row["applies"]} == {
        item.theorem.key for item in noisy.applicable
    }


TOO_LARGE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"start": {"kind": "uniform", "tokens": 10**7}}, {}, "10,000,000"),
    ({"dim": 10**5}, {}, "100,000"),
    ({"dim": 2000, "start": {"kind": "uniform", "tokens": 200_000}}, {}, "400,000,000"),
    ({"dim": 10**300}, {}, "whole number"),
    ({"dim": 2000, "heads": [{}] * 50}, {}, "entries of matrices"),
    ({}, {"save": 10**9}, "up to 2,000 states"),
    ({}, {"save": [0.0] * 5000}, "up to 2,000 states"),
    ({"start": {"kind": "uniform", "tokens": 100_000}}, {"save": 1000, "encoding": "base64"}, "save up to"),
    ({"start": {"kind": "uniform", "tokens": 200_000}, "dim": 4}, {}, "binary"),
    ({}, {"save": "many"}, "save must be"),
    ({}, {"encoding": "pickle"}, "encoding"),
    ({}, {"max_seconds": -1}, "max_seconds"),
]


@pytest.mark.parametrize(("part", "options", "words"), TOO_LARGE, ids=lambda part: str(part)[:30])
def test_what_is_too_large_gets_one_sentence(
    client: Client, part: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    rows = client.run(SMALL | part, **options)
    assert rows[-1]["kind"] == "error"
    assert words in rows[-1]["message"]


def test_long_requests_are_rejected_before_they_are_read(client: Client) -> None:
    status, _, data = client.ask("POST", "/api/run", b"{}", Content_Length=str(10**9))
    assert (status, b"at most" in data) == (413, True)


# ---------------------------------------------------------------------- one run at a time, and clients that leave


def test_a_new_run_cancels_the_old_one(served: Explorer, client: Client) -> None:
    with streaming(client, ENDLESS) as first:
        assert client.run(SMALL)[-1]["kind"] == "end"
        assert b'"kind": "end"' not in read_all(first)
    assert wait_for(lambda: not served.tasks)


def test_a_client_that_leaves_ends_its_run(served: Explorer, client: Client) -> None:
    with streaming(client, ENDLESS):
        assert served.tasks
    assert wait_for(lambda: not served.tasks)
    assert client.run(SMALL)[-1]["kind"] == "end"


def test_time_is_limited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = ENDLESS | {"start": {"kind": "uniform", "tokens": 500, "seed": 0}}
    assert client.run(slow, max_seconds=0.3)[-1]["outcome"]["name"] == "budget"
    monkeypatch.setitem(server.SECONDS, "run", 1.0)
    rows = client.run(ENDLESS)
    assert rows[-1] == {
        "kind": "error",
        "message": "the computation took longer than 1 seconds, the limit of the explorer",
    }


def test_a_worker_that_dies_is_replaced(served: Explorer, client: Client) -> None:
    with streaming(client, ENDLESS) as run:
        for pid in worker_pids(served):
            os.kill(pid, signal.SIGKILL)
        assert b'"kind": "error", "message": "the computation was ended by the system' in read_all(run)
    assert client.run(SMALL)[-1]["kind"] == "end"


# ---------------------------------------------------------------------- nonsense, crowds, floods


def malformed(rng: random.Random, port: int, key: str) -> bytes:
    """One message that is not a valid request, in one of many ways."""
    host = f"Host: 127.0.0.1:{port}\r\n"
    own = f"{host}X-Attractor-Key: {key}\r\nX-Attractor-Client: mad\r\nContent-Type: application/json\r\n"
    body = rng.choice(
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"system": NaN}',
            b"[" * 5000,
            b'{"system": ' + b'{"a":' * 2000,
            b"\xff\xfe\x00",
            b'{"system": {"schema": "attractor.system/1", "dim": 1e999}}',
            b'{"system": {"schema": "attractor.system/1", "start": {"kind": "__class__"}}}',
            json.dumps(
                {"system": SMALL | {rng.choice(list(SMALL)): rng.choice([None, [], {}, -1, "x", 1e308, [[]], True])}}
            ).encode(),
            rng.randbytes(rng.randrange(200)),
        ]
    )
    path = rng.choice(
        ["/api/run", "/api/describe", "/api/predict", "/api/model", "/api/session", "/api/%00", "/" + "a" * 3000]
    )
    length = rng.choice([len(body), 0, -1, 10**15, "x", "1e3", len(body) + 7, ""])
    return rng.choice(
        [
            lambda: rng.randbytes(rng.randrange(1, 400)),
            lambda: b"\r\n" * rng.randrange(50),
            lambda: b"GET / HTTP/9.9\r\n\r\n",
            lambda: b"GET\r\n\r\n",
            lambda: f"GET / HTTP/1.1\r\n{host}{'x: y' + chr(13) + chr(10)}".encode() * 200,
            lambda: f"GET / HTTP/1.1\r\n{'Cookie: a=b' * 9000}\r\n\r\n".encode(),
            lambda: f"GET / HTTP/1.1\r\n{host}{host}\r\n".encode(),
            lambda: f"POST {path} HTTP/1.1\r\n{host}\r\n".encode() + body,
            lambda: f"POST {path} HTTP/1.1\r\n{own}Transfer-Encoding: chunked\r\n\r\nffffffff\r\n".encode(),
            lambda: f"POST {path} HTTP/1.1\r\n{own}Content-Length: {length}\r\n\r\n".encode() + body,
            lambda: (
                f"POST {path} HTTP/1.0\r\n{own}Content-Length: {length}\r\nContent-Length: 1\r\n\r\n".encode() + body
            ),
            lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(100),  # TLS
        ]
    )()


def send_nonsense(served: Explorer, messages: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(messages):
        with (
            socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection,
            contextlib.suppress(OSError),
        ):
            connection.sendall(malformed(rng, served.port, served.key))
            if rng.random() < 0.7:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass


def crowd(served: Explorer, clients: int, runs: int) -> None:
    """Many clients at once: each run ends, or the server says that it is busy."""

    def work(index: int) -> list[str]:
        one, kinds = Client(served, f"client{index}"), []
        for _ in range(runs):
            status, _, data = one.ask("POST", "/api/run", {"system": SMALL, "save": 3})
            kinds.append("busy" if status == 503 else json.loads(data.splitlines()[-1])["kind"])
        return kinds

    with ThreadPoolExecutor(clients) as threads:
        kinds = [kind for found in threads.map(work, range(clients)) for kind in found]
    assert set(kinds) <= {"end", "busy"}
    assert kinds.count("end") > 0.9 * len(kinds)


def flood(served: Explorer, connections: int) -> None:
    """Open connections that send nothing, more than the server keeps."""
    opened = []
    with contextlib.suppress(OSError):
        for _ in range(connections):
            opened.append(socket.create_connection(("127.0.0.1", served.port), timeout=5))
    for connection in opened:
        connection.close()


def is_idle(served: Explorer, threads: int) -> bool:
    return not served.tasks and threading.active_count() <= threads


@linux
def test_nothing_is_left_of_nonsense_crowds_and_floods(served: Explorer, client: Client, capfd: Any) -> None:
    """Threads, descriptors and memory return, the workers are idle, and no defect was reported."""
    crowd(served, 4, 2)  # both workers have started
    client.post("/api/predict", {"system": SMALL})
    assert wait_for(lambda: not served.tasks)
    time.sleep(0.5)
    threads, descriptors, memory = threading.active_count(), count_descriptors(), read_memory()
    workers = set(worker_pids(served))
    send_nonsense(served, 1000, 0)
    crowd(served, 50, 2)
    flood(served, 300)
    assert wait_for(lambda: is_idle(served, threads)), threading.enumerate()
    assert client.run(SMALL)[-1]["kind"] == "end"
    assert wait_for(lambda: count_descriptors() <= descriptors)
    assert read_memory() < memory + (64 << 20)
    assert set(worker_pids(served)) == workers  # none died
    before = cpu_seconds(served)
    time.sleep(1.0)
    assert cpu_seconds(served) - before < 0.2
    assert "internal error" not in capfd.readouterr().err


def test_slow_requests_are_closed(served: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READ_SECONDS", 0.7)
    began = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection,
        contextlib.suppress(OSError),
    ):
        for letter in b"GET / HTTP/1.1\r\n" * 10:
            connection.sendall(bytes([letter]))
            time.sleep(0.05)
        assert not connection.recv(1)
    assert time.monotonic() - began < 6.0


# ---------------------------------------------------------------------- the command


def test_a_taken_port_is_one_clear_line(served: Explorer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["explore", "--no-browser", "--port", str(served.port)]) == 2
    message = capsys.readouterr().err
    assert f"port {served.port} is taken by another program" in message
    assert message.count("\n") == 1
    assert run_command(["explore", "--no-browser", "--port", "70000"]) == 2


def test_the_command_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "attractor", "explore", "--no-browser", "--json"]
    # a background job of a shell starts with SIGINT ignored, and so would the command
    take_interrupts = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with ExitStack() as cleanup:
        process = cleanup.enter_context(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=take_interrupts
            )
        )
        cleanup.callback(process.kill)
        assert process.stdout is not None
        row = json.loads(process.stdout.readline())
        assert row["schema"] == "attractor.explore/1"
        assert row.keys() == {"schema", "command", "address", "port", "models", "versions"}  # as in docs/json.md
        assert row["address"].startswith(f"http://127.0.0.1:{row['port']}/?token=")
        connection = http.client.HTTPConnection("127.0.0.1", row["port"], timeout=30)
        connection.request("GET", row["address"].partition(str(row["port"]))[2])
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stdout.read() == ""
        assert process.stderr is not None
        assert process.stderr.read() == ""
