#!/usr/bin/env python3
"""The notice of new versions, by a program that was built with http://127.0.0.1:PORT/martlet as the address of releases:
asked at most once a day, told at most once a day, only at a terminal, and nobody waits.

Usage: test_news.py PROGRAM PORT
"""

import http.server
import json
import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM, PORT = sys.argv[1], int(sys.argv[2])
asked = []
answer = b"4000.1.2\n"
release = threading.Event()
stall = False


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append((self.path, sorted(name.lower() for name in self.headers)))
        if stall:
            release.wait(60)
        try:
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
        except OSError:
            pass  # the command is done: it has not waited

    def log_message(self, *_):
        pass


def environment(home, **more):
    return {"HOME": str(home), "PATH": os.environ["PATH"], "TERM": "xterm", **more}


def at_terminal(home, *arguments, **more):
    """What a person sees of a command."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, env=environment(home, **more)
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # how a pseudo-terminal tells that nobody writes any more
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    assert child.wait() == 0, seen
    return seen.decode()


def told(seen):
    return [line for line in seen.splitlines() if "4000.1.2 is out" in line]


def learn(home):
    """Asks until the answer came before the command was done: the command does not wait for it."""
    file = pathlib.Path(home, ".cache/martlet/news.json")
    for _ in range(50):
        seen = at_terminal(home, "chat", "hello")
        if json.loads(file.read_text())["newest"]:
            return file, seen
        assert not told(seen)
        file.unlink()
    sys.exit("test_news: the answer never came in time")


def main():
    global stall
    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        # Nobody is asked: no terminal, told not to, by variable, by file, or to be quiet.
        subprocess.run(
            [PROGRAM, "chat", "hello"], env=environment(home), stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
        at_terminal(home, "chat", "hello", MARTLET_UPDATE_CHECK="0")
        at_terminal(home, "chat", "--quiet", "hello")
        config = pathlib.Path(home, "config.toml")
        config.write_text("update_check = false\n")
        at_terminal(home, "chat", "hello", MARTLET_CONFIG=str(config))
        at_terminal(home, "config", "show")
        assert not asked, asked

        file, seen = learn(home)
        assert len(told(seen)) == 1, seen
        path, headers = asked[-1]
        assert path == "/martlet/latest", path
        assert set(headers) <= {"host", "accept", "accept-encoding", "user-agent"}, headers
        count = len(asked)
        for _ in range(3):
            assert not told(at_terminal(home, "chat", "hello"))
        assert len(asked) == count, "asked more than once a day"

        # A day later it is told again, also by a command that asks nobody.
        known = json.loads(file.read_text())
        file.write_text(json.dumps({**known, "told": known["told"] - 90_000}))
        assert len(told(at_terminal(home, "config", "show"))) == 1
        assert len(asked) == count

        # A server that never answers: the command does not wait for it.
        file.unlink()
        stall = True
        started = time.monotonic()
        at_terminal(home, "chat", "hello")
        took = time.monotonic() - started
        assert took < 4.5, f"{took} s"
        release.set()
    server.shutdown()
    server.server_close()
    # Nobody there: the command goes as ever.
    with tempfile.TemporaryDirectory() as home:
        seen = at_terminal(home, "chat", "hello")
        assert "error" not in seen and not told(seen), seen
    print(f"asked {len(asked)} times; told once a day, at a terminal alone")


main()
