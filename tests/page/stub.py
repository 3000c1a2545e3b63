"""A server that misbehaves when asked to: what the page must bear, and a real server does not do at will.

It serves the page's files under the policy of the real server, and streams scripted answers; it keeps what it was sent.
"""

import json
import pathlib
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HERE = pathlib.Path(__file__).parent
SERVER = HERE.parent.parent / "crates/martlet-server"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def policy():
    source = (SERVER / "src/page.rs").read_text()
    text = re.search(r'const POLICY: &str = "(.*?)";', source, re.S).group(1)
    return re.sub(r"\\\n\s*", "", text)


def script():
    """Answers as (words, text), in the order of the file."""
    parts = re.split(r"^=== answer(.*)\n", (HERE / "script.txt").read_text(), flags=re.M)[1:]
    return [(mark.partition("when:")[2].strip(), text.strip("\n")) for mark, text in zip(parts[::2], parts[1::2])]


class Stub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.policy, self.script = policy(), script()
        self.bodies, self.taken, self.gone = [], set(), threading.Event()
        self.key, self.vision = None, False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, last):
        for i, (words, text) in enumerate(self.script):
            if i not in self.taken and words in last:
                self.taken.add(i) if words else None
                return text
        return "nothing"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, kind, body, **headers):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def fail(self, status, message, **headers):
        self.send(status, "application/json", json.dumps({"error": {"message": message}}), **headers)

    def refused(self):
        key = self.server.key
        if key and self.headers["authorization"] != f"Bearer {key}":
            given = self.headers["authorization"]
            self.fail(401, "the API key is not known here" if given else "an API key is needed")
            return True
        return False

    def do_GET(self):
        if self.path == "/v1/models":
            if not self.refused():
                vision = {"capabilities": {"vision": self.server.vision, "reasoning": True}}
                about = {
                    "context_window": 32768,
                    "architecture": "qwen3_5",
                    "reasoning_levels": ["none", "low", "high"],
                }
                models = [{"id": name, **vision, **about} for name in ("stub", "other")]
                self.send(200, "application/json", json.dumps({"data": models}))
            return
        name = "index.html" if self.path == "/" else self.path.removeprefix("/page/")
        file = SERVER / "page" / name
        if "/" in name or not file.is_file():
            return self.fail(404, "not here")
        kind = TYPES[file.suffix[1:]] + "; charset=utf-8"
        self.send(200, kind, file.read_bytes(), Content_Security_Policy=self.server.policy, Cache_Control="no-cache")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        if self.refused():
            return
        last = body["messages"][-1]["content"]
        last = last if isinstance(last, str) else last[-1]["text"]
        if last == "be busy":
            return self.fail(429, "256 requests are running and waiting", Retry_After=7)
        if last == "be too long":
            return self.fail(400, "the prompt has 40000 tokens, and the context 32768")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.stream(last, body)
        except OSError:
            self.server.gone.set()

    def event(self, value, name=None):
        data = value if isinstance(value, str) else json.dumps(value)
        self.wfile.write(f"{f'event: {name}' + chr(10) if name else ''}data: {data}\n\n".encode())
        self.wfile.flush()

    def delta(self, **delta):
        usage = {"prompt_tokens": 1234, "completion_tokens": self.tokens}
        self.tokens += 1
        self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": usage})

    def stream(self, last, body):
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        self.tokens = 0
        self.event({"type": "progress", "done": 512, "total": 2048}, "progress")
        self.wfile.write(b": ping\n\n")
        if last == "be slow to read":
            time.sleep(1.5)
        self.delta(role="assistant", content="")
        if last == "be slow":
            for i in range(2000):
                self.delta(content=f"word {i}\n\n")
                time.sleep(0.02)
        if last == "be slow to think":
            for i in range(40):
                self.delta(reasoning_content=f"thought {i}\n\n")
                time.sleep(0.04)
        if last in ("be broken", "be mistaken"):
            self.delta(content="Half an ")
            if last == "be mistaken":
                self.event({"error": {"message": "the engine ran out of memory"}})
                self.event("[DONE]")
            return
        text = self.server.answer(last)
        thinking = body.get("chat_template_kwargs", {}).get("enable_thinking", True)
        form = r"(?:(?:<think>\n(.*?)\n)?</think>\n\n)?(.*?)(?:\n\n<tool_call>(.*)</tool_call>)?"
        match = re.fullmatch(form, text, re.S)
        reasoning, content, call = match.groups()
        for name, value in (("reasoning_content", thinking and reasoning), ("content", content)):
            for piece in re.findall(r"\s*\S{1,6}", value or "", re.S):
                self.delta(**{name: piece})
        tokens = self.tokens - 1
        if call:
            name = re.search("<function=(.*?)>", call)[1]
            pairs = re.findall(r"<parameter=(.*?)>\n(.*?)\n</parameter>", call, re.S)
            arguments = json.dumps({k: int(v) if v.isdigit() else v for k, v in pairs})
            function = {"name": name, "arguments": ""}
            self.delta(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": function}])
            for piece in re.findall(".{1,5}", arguments, re.S):
                self.delta(tool_calls=[{"index": 0, "function": {"arguments": piece}}])
        finish = "length" if last == "be cut off" else "tool_calls" if call else "stop"
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        details = {"prompt_tokens_details": {"cached_tokens": 12}, "completion_tokens_details": {"reasoning_tokens": 3}}
        self.event({"choices": [], "usage": {"prompt_tokens": 1234, "completion_tokens": tokens, **details}})
        self.event("[DONE]")


if __name__ == "__main__":
    print(Stub().url, flush=True)
    threading.Event().wait()
