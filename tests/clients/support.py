"""Where the servers are, and what the tests of both APIs share. tools/client-tests.sh starts the servers."""

import json
import os
import time
import urllib.error
import urllib.request

MODEL_URL = os.environ.get("MARTLET_MODEL_URL", "http://127.0.0.1:8080")  # fledgling answers
SCRIPT_URL = os.environ.get("MARTLET_SCRIPT_URL", "http://127.0.0.1:8081")  # script.txt answers
KEY = os.environ.get("MARTLET_TEST_KEY", "")  # of the first

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
WRITE = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "text": {"type": "string"},
        "mode": {"type": "integer"},
        "options": {"type": "object"},
    },
    "required": ["path", "text"],
}
# What `write the file` of script.txt means by WRITE.
WRITTEN = {
    "path": "02134",
    "text": '\n    if x < 1 && y > 2:  \n\n\treturn "</parameter> é 漢 🐦"\n',
    "mode": 420,
    "options": {"backup": True, "tags": ["a", None, 1.5]},
}
MARKDOWN = '# naïve 漢字 🐦‍⬛\n\n```js\na = b < c && d > "e";\n```\n\n- one\n- two'
PATCH = '*** Begin Patch\n-old "line"\n+new \\ line\n*** End Patch'

# Requests that fledgling was trained for.
MAIL = "Write to lola@zamir.net about tired bicycle, urgent: no."
MAIL_SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "description": "Email address"},
        "subject": {"type": "string", "description": "Subject line"},
        "urgent": {"type": "boolean", "description": "Mark as urgent"},
    },
    "required": ["to", "subject"],
}
MAIL_ARGUMENTS = {"to": "lola@zamir.net", "subject": "tired bicycle", "urgent": False}
COMMANDS = "Please execute cargo test dupex. Please execute rm -f ./linupen and stop it after 60."
COMMAND_SCHEMA = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "Command line"},
        "timeout": {"type": "number", "description": "Seconds"},
    },
    "required": ["command"],
}
COMMAND_ARGUMENTS = [{"command": "cargo test dupex"}, {"command": "rm -f ./linupen", "timeout": 60}]


def finished(reason):
    """Turns of the model's server that ended so."""
    request = urllib.request.Request(MODEL_URL + "/metrics", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        lines = response.read().decode().splitlines()
    ours = [line for line in lines if line.startswith("martlet_finished_total") and f'reason="{reason}"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in ours)


def until(true, what):
    """Waits for what takes its moment, such as a cancelled turn's end."""
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError(f"never came: {what}")


def raw(method, path, body=b"", url=MODEL_URL, key=KEY, **headers):
    """Status and JSON of a request that no client would send."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    request = urllib.request.Request(url + path, data=body or None, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)
