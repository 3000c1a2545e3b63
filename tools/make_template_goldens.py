"""Render every test conversation with transformers, as the truth that martlet's templates are compared with.

Needs transformers and jinja2 (no torch). Usage:

    python tools/make_template_goldens.py [PUBLISHED_DIR]

Reads tests/fixtures/templates/conversations.json and writes beside it one JSON file for each of our own templates,
with the full text. With the folder of the published templates (tools/prepare-test-data.sh makes it), it also writes
published.json, which holds nothing but SHA-256 sums, since those templates are other people's files.
Where there is no text, {"raises": MESSAGE} tells that the template called raise_exception, {"error": MESSAGE} that
it failed otherwise; in published.json both are the marker "error".
"""

import hashlib
import json
import sys
from pathlib import Path

import jinja2
import transformers
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures" / "templates"
MODEL = ROOT / "models" / "fledgling"
PUBLISHED = ["qwen3", "qwen3_instruct_2507", "qwen3_vl", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8"]


def with_parsed_arguments(messages):
    """Arguments in the string form of the APIs become objects, as martlet does before it renders."""
    messages = json.loads(json.dumps(messages))
    for message in messages:
        for call in message.get("tool_calls") or []:
            arguments = call["function"]["arguments"]
            if isinstance(arguments, str):
                try:
                    parsed = json.loads(arguments or "{}")
                except ValueError:
                    continue
                if isinstance(parsed, dict):
                    call["function"]["arguments"] = parsed
    return messages


def render(tokenizer, template, case):
    variables = dict(case.get("chat_template_kwargs") or {})
    if case.get("enable_thinking") is not None:
        variables["enable_thinking"] = case["enable_thinking"]
    try:
        text = tokenizer.apply_chat_template(
            with_parsed_arguments(case["messages"]),
            tools=case.get("tools") or None,
            chat_template=template,
            add_generation_prompt=case.get("add_generation_prompt", True),
            tokenize=False,
            **variables,
        )
        return {"text": text}
    except jinja2.TemplateError as error:
        # `raise_exception` raises the base class itself; what jinja2 finds wrong is of a subclass.
        return {"raises" if type(error) is jinja2.TemplateError else "error": str(error)}
    except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        return {"error": str(error)}


def sha256(rendering):
    return hashlib.sha256(rendering["text"].encode()).hexdigest() if "text" in rendering else "error"


def write(path, entries):
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    cases = json.loads((FIXTURES / "conversations.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    own = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FIXTURES.glob("*.jinja"))}
    own["fledgling"] = (MODEL / "chat_template.jinja").read_text(encoding="utf-8")
    for name, template in own.items():
        renderings = {case: render(tokenizer, template, value) for case, value in cases.items()}
        write(FIXTURES / f"{name}.json", renderings)
        errors = sum("text" not in r for r in renderings.values())
        print(f"{name}: {len(renderings)} renderings, {errors} of them errors")
    if len(sys.argv) > 1:
        sums = {case: {} for case in cases}
        for name in PUBLISHED:
            template = (Path(sys.argv[1]) / f"{name}.jinja").read_text(encoding="utf-8")
            for case, value in cases.items():
                sums[case][name] = sha256(render(tokenizer, template, value))
            print(f"{name}: {sum(s[name] == 'error' for s in sums.values())} of {len(sums)} are errors")
        write(FIXTURES / "published.json", sums)
    print(f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}")


if __name__ == "__main__":
    main()
