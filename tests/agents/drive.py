"""Drives one coding agent, for tools/agent-tests.sh, in the current folder, which has a file `notes.txt`.

drive.py script AGENT   prints what the model says: read the file, edit it, run a command, end
drive.py run AGENT      sets the agent up as docs/clients/AGENT.md says, for the server at $URL, and runs it
"""

import json
import os
import pathlib
import re
import sys

WAS, IS = "The swift sleeps on the ground.", "The swift sleeps on the wing."
COMMAND = "cat notes.txt > seen.txt"
TASK = "Correct notes.txt: swifts sleep on the wing. Then run: " + COMMAND
NOTES = str(pathlib.Path("notes.txt").absolute())
PATCH = f"apply_patch <<'END'\n*** Begin Patch\n*** Update File: notes.txt\n@@\n-{WAS}\n+{IS}\n*** End Patch\nEND"

# The calls of each agent, in the words of its tools.
CALLS = {
    "opencode": [
        ("read", {"filePath": NOTES}),
        ("edit", {"filePath": NOTES, "oldString": WAS, "newString": IS}),
        ("bash", {"command": COMMAND}),
    ],
    "codex": [
        ("exec_command", {"cmd": "cat notes.txt"}),
        ("exec_command", {"cmd": PATCH}),
        ("exec_command", {"cmd": COMMAND}),
    ],
    "claude-code": [
        ("Read", {"file_path": NOTES}),
        ("Edit", {"file_path": NOTES, "old_string": WAS, "new_string": IS}),
        ("Bash", {"command": COMMAND, "description": "Copy the notes"}),
    ],
    "pi": [
        ("read", {"path": "notes.txt"}),
        ("edit", {"path": "notes.txt", "edits": [{"oldText": WAS, "newText": IS}]}),
        ("bash", {"command": COMMAND}),
    ],
    "cline": [
        ("read_files", {"files": [{"path": NOTES}]}),
        ("editor", {"path": NOTES, "old_text": WAS, "new_text": IS}),
        ("run_commands", {"commands": [COMMAND]}),
    ],
    "continue": [
        ("Read", {"filepath": NOTES}),
        ("Edit", {"file_path": NOTES, "old_string": WAS, "new_string": IS}),
        ("Bash", {"command": COMMAND}),
    ],
}

RUN = {
    "opencode": ["opencode", "run", "--title", "Notes", TASK],
    "codex": ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK],
    "claude-code": ["claude", "-p", TASK, "--allowedTools", "Read,Edit,Bash"],
    "pi": ["pi", "--offline", "--provider", "martlet", "--model", "martlet", "-p", TASK],
    "cline": ["cline", "--json", TASK],
    "continue": ["cn", "--config", "config.yaml", "--auto", "-p", TASK],
    # aider has no tools: the model answers with the whole file, and the command is run to test it.
    "aider": ["aider", "--yes-always", "--no-check-update", "--no-analytics", "--auto-test", "--test-cmd", COMMAND,
              "--message", TASK, "notes.txt"],
}


def script(agent):
    if agent == "aider":
        return f"=== answer repeat\nOne line to change.\n</think>\n\nnotes.txt\n```\n{IS}\n```\n\nAll is done.\n"
    text = ""
    for name, arguments in CALLS[agent]:
        text += f"=== answer\nThe next step is {name}.\n</think>\n\n<tool_call>\n<function={name}>\n"
        for key, value in arguments.items():
            value = value if isinstance(value, str) else json.dumps(value)
            text += f"<parameter={key}>\n{value}\n</parameter>\n"
        text += "</function>\n</tool_call>\n"
    return text + "=== answer repeat\nNothing is left.\n</think>\n\nAll is done.\n"


def settings(agent):
    """The fenced blocks of the agent's page, by their language, for the server under test."""
    page = pathlib.Path(__file__).parents[2] / "docs" / "clients" / f"{agent}.md"
    text = page.read_text().replace("http://127.0.0.1:8080", os.environ["URL"])
    return dict(re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def write(path, text):
    path = pathlib.Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def exports(text):
    """Puts the `export NAME=VALUE` lines of a page into the environment."""
    os.environ.update(re.findall(r"^export (\w+)=\"?(.*?)\"?$", text, re.MULTILINE))


def set_up(agent):
    said = settings(agent)
    match agent:
        case "opencode":
            write("opencode.json", said["json"])
        case "codex":
            write("~/.codex/config.toml", said["toml"])
        case "claude-code" | "aider":
            exports(said["sh"])
        case "pi":
            write("~/.pi/agent/models.json", said["json"])
        case "continue":
            write("config.yaml", said["yaml"])
        case "cline":
            os.system(said["sh"].splitlines()[0])


if __name__ == "__main__":
    mode, agent = sys.argv[1:]
    if mode == "script":
        print(script(agent), end="")
    else:
        set_up(agent)
        os.execvp(RUN[agent][0], RUN[agent])
