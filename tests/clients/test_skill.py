"""fledgling calls tools through the API as well as in the run that its scores were published from."""

import json
import sys
from pathlib import Path

import openai
from support import *

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import skills  # noqa: E402

model = openai.OpenAI(base_url=MODEL_URL + "/v1", api_key=KEY, max_retries=0)
CASES = 200


def calls(message):
    """Calls as fledgling writes them, which is what its checker reads."""
    for call in message.tool_calls or []:
        arguments = json.loads(call.function.arguments).items()
        values = [(k, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in arguments]
        parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
        yield f"<tool_call>\n<function={call.function.name}>\n{parameters}</function>\n</tool_call>"


def is_right(sample):
    asked = max(i for i, m in enumerate(sample["messages"]) if m["role"] == "assistant")
    answer = model.chat.completions.create(
        model="fledgling",
        messages=sample["messages"][:asked],
        tools=sample["tools"] or openai.omit,
        temperature=0,
        max_tokens=skills.TOKENS["tool"],
        extra_body={"enable_thinking": bool(sample["think"])},
    )
    message = answer.choices[0].message
    text = "\n".join([message.content] * bool(message.content) + list(calls(message)))
    return skills.data.check(sample, text)


def test_tool_calls():
    right = sum(is_right(sample) for sample in skills.samples("tool", CASES, 0))
    published = json.loads(skills.RESULTS.read_text())["q4"]["accuracy"]["tool"]
    assert right / CASES >= published, f"{right} of {CASES}"
