"""The official Python client of Anthropic against `martlet serve`."""

import json
import typing

import anthropic
import pydantic
import pytest
from support import *

model = anthropic.Anthropic(base_url=MODEL_URL, api_key=KEY, max_retries=0)
script = anthropic.Anthropic(base_url=SCRIPT_URL, api_key="any", max_retries=0)
NAME = "fledgling"
GREEDY = {"temperature": 0}
THINK = {"type": "enabled", "budget_tokens": 1024}


def user(text):
    return [{"role": "user", "content": text}]


def tool(name, schema):
    return {"name": name, "description": name, "input_schema": schema}


def types(message):
    return [block.type for block in message.content]


class Bird(pydantic.BaseModel):
    # A small model would go on and on in a string, and this client takes bounds of strings out of schemas.
    name: typing.Literal["swift", "robin", "wren"]
    legs: typing.Literal[0, 2]
    swift: bool


def test_models():
    assert NAME in [m.id for m in model.models.list()]
    assert model.models.retrieve(NAME).type == "model"


def test_message():
    answer = model.messages.create(model=NAME, max_tokens=500, messages=user("hello"), extra_body=GREEDY,
                                   thinking={"type": "disabled"}, system="You are a careful assistant. Be concise.")
    assert answer.type == "message" and answer.role == "assistant" and answer.stop_reason == "end_turn"
    assert types(answer) == ["text"] and answer.content[0].text
    assert answer.usage.output_tokens > 0


def test_thinking():
    asked = dict(model=NAME, max_tokens=2000, messages=user("What is 47 + 89?"), thinking=THINK, extra_body=GREEDY)
    whole = model.messages.create(**asked)
    assert types(whole) == ["thinking", "text"]
    assert whole.content[0].thinking and isinstance(whole.content[0].signature, str) and "136" in whole.content[1].text
    with model.messages.stream(**asked) as stream:
        events = list(stream)
        streamed = stream.get_final_message()
    assert [b.model_dump(exclude={"parsed_output"}) for b in streamed.content] == [b.model_dump() for b in whole.content]
    assert [e.type for e in events if e.type.startswith("message")] == ["message_start", "message_delta", "message_stop"]
    # Thinking is sent back, as clients do.
    messages = user("What is 47 + 89?") + [{"role": "assistant", "content": whole.content}] + user("hello")
    assert model.messages.create(**asked | {"messages": messages}).content[-1].text


def test_order_of_events():
    asked = dict(model=NAME, max_tokens=500, messages=user("weather in Paris and Rome"), thinking=THINK,
                 tools=[tool("get_weather", WEATHER)])
    open_block, seen = None, []
    for event in script.messages.create(**asked, stream=True):
        if event.type == "content_block_start":
            assert open_block is None and event.index == len(seen)
            open_block, seen = event.index, seen + [event.content_block.type]
            if event.content_block.type == "tool_use":
                assert event.content_block.input == {} and event.content_block.name == "get_weather"
        elif event.type in ("content_block_delta", "content_block_stop"):
            assert event.index == open_block
            open_block = open_block if event.type == "content_block_delta" else None
        elif event.type == "message_delta":
            assert open_block is None and event.delta.stop_reason == "tool_use" and event.usage.output_tokens > 0
    assert seen == ["thinking", "text", "tool_use", "tool_use"]


def test_shapes_of_messages():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True,
             "content": [{"type": "text", "text": "no such city"}]},
            {"type": "text", "text": "hello"}]},
    ]
    system = [{"type": "text", "text": "Be concise.", "cache_control": {"type": "ephemeral"}},
              {"type": "text", "text": "Be careful."}]
    answer = model.messages.create(model=NAME, max_tokens=300, messages=messages, system=system, extra_body=GREEDY,
                                   tools=[tool("get_weather", WEATHER) | {"cache_control": {"type": "ephemeral"}}])
    assert answer.stop_reason in ("end_turn", "tool_use", "max_tokens")


def test_prefill():
    messages = user("Tell me a story with a dog and a ball.") + [{"role": "assistant", "content": "One day a dog"}]
    answer = model.messages.create(model=NAME, max_tokens=40, messages=messages, extra_body=GREEDY,
                                   thinking={"type": "disabled"})
    assert answer.content[0].text and not answer.content[0].text.startswith("One day a dog")


def test_ends():
    cut = model.messages.create(model=NAME, max_tokens=3, messages=user("hello"))
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3
    asked = dict(model=NAME, max_tokens=500, messages=user("Greek letters"), stop_sequences=["ta gamma"], thinking=THINK)
    stopped = script.messages.create(**asked)
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "ta gamma"
    assert stopped.content[-1].text == "alpha be"
    with script.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == "alpha be"


def test_bytes_survive():
    asked = dict(model=NAME, max_tokens=500, messages=user("markdown please"), thinking=THINK)
    assert script.messages.create(**asked).content[-1].text == MARKDOWN
    with script.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == MARKDOWN


def test_parallel_calls_and_their_results():
    tools = [tool("get_weather", WEATHER), tool("write_file", WRITE)]
    asked = dict(model=NAME, max_tokens=500, tools=tools, thinking=THINK)
    messages = user("The weather in Paris and Rome?")
    whole = script.messages.create(**asked, messages=messages)
    assert types(whole) == ["thinking", "text", "tool_use", "tool_use"] and whole.stop_reason == "tool_use"
    calls = whole.content[2:]
    assert [c.input for c in calls] == [{"city": "Paris"}, {"city": "Rome", "days": 3}] and calls[0].id != calls[1].id
    with script.messages.stream(**asked, messages=messages) as stream:
        streamed = stream.get_final_message()
    assert [c.input for c in streamed.content[2:]] == [c.input for c in calls]
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": text}
               for c, text in zip(calls, ["rain in Paris", "sunny in Rome"])]
    messages += [{"role": "assistant", "content": whole.content}, {"role": "user", "content": results}]
    last = script.messages.create(**asked, messages=messages)
    assert last.stop_reason == "end_turn" and last.content[-1].text == "Paris has rain, Rome has sun."


def test_arguments_to_the_byte():
    asked = dict(model=NAME, max_tokens=900, tools=[tool("write_file", WRITE)], messages=user("write the file"), thinking=THINK)
    assert script.messages.create(**asked).content[-1].input == WRITTEN
    pieces = ""
    for event in script.messages.create(**asked, stream=True):
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            pieces += event.delta.partial_json
    assert json.loads(pieces) == WRITTEN


def test_choice_of_tools():
    schemas = {"get_weather": WEATHER, "send_email": MAIL_SCHEMA}
    asked = dict(model=NAME, max_tokens=400, messages=user("hello"), extra_body=GREEDY,
                 tools=[tool(name, schema) for name, schema in schemas.items()])
    assert "tool_use" not in types(model.messages.create(**asked, tool_choice={"type": "none"}))
    for choice, names in [({"type": "any"}, set(schemas)), ({"type": "tool", "name": "get_weather"}, {"get_weather"})]:
        choice["disable_parallel_tool_use"] = True
        forced = model.messages.create(**asked, tool_choice=choice, thinking={"type": "disabled"})
        call = forced.content[-1]
        assert types(forced).count("tool_use") == 1 and call.name in names and forced.stop_reason == "tool_use"
        assert set(schemas[call.name]["required"]) <= set(call.input)


def test_fledgling_calls_tools():
    mail = model.messages.create(model=NAME, max_tokens=400, messages=user(MAIL), thinking={"type": "disabled"},
                                 tools=[tool("send_email", MAIL_SCHEMA), tool("get_weather", WEATHER)], extra_body=GREEDY)
    assert mail.content[-1].name == "send_email" and mail.content[-1].input == MAIL_ARGUMENTS


def test_structured_output():
    asked = dict(model=NAME, max_tokens=600, messages=user("A bird, please."), thinking={"type": "disabled"},
                 output_format=Bird, extra_body=GREEDY)
    parsed = model.messages.parse(**asked).parsed_output
    assert isinstance(parsed, Bird)
    with model.messages.stream(**asked) as stream:
        assert stream.get_final_message().parsed_output == parsed


def test_count_tokens():
    asked = dict(model=NAME, messages=user("What is 47 + 89?"), system="Be concise.", tools=[tool("send_email", MAIL_SCHEMA)])
    counted = model.messages.count_tokens(**asked).input_tokens
    usage = model.messages.create(**asked, max_tokens=1).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    more = model.messages.count_tokens(**asked | {"messages": user("What is 47 + 89, and 3 more?")}).input_tokens
    assert more > counted


def test_errors():
    def refused(error, **asked):
        with pytest.raises(error) as e:
            model.messages.create(**{"model": NAME, "max_tokens": 10, "messages": user("hello")} | asked)
        return e.value.body["error"]

    assert refused(anthropic.NotFoundError, model="claude-9")["type"] == "not_found_error"
    assert refused(anthropic.BadRequestError, messages=[])["type"] == "invalid_request_error"
    assert "max_tokens" in refused(anthropic.BadRequestError, max_tokens=0)["message"]
    assert "messages[0].content[0]" in refused(
        anthropic.BadRequestError, messages=[{"role": "user", "content": [{"type": "hologram"}]}])["message"]
    assert "32768" in refused(anthropic.BadRequestError, messages=user("word " * 40000))["message"]
    stranger = anthropic.Anthropic(base_url=MODEL_URL, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model=NAME, max_tokens=10, messages=user("hello"))
    status, answer = raw("POST", "/v1/messages", b"{:")
    assert status == 400 and answer["type"] == "error"
    bearer = anthropic.Anthropic(base_url=MODEL_URL, auth_token=KEY, api_key=None, max_retries=0)
    assert bearer.messages.create(model=NAME, max_tokens=1, messages=user("hello")).usage.output_tokens == 1


def test_cancel():
    before = finished("cancelled")
    with model.messages.stream(model=NAME, max_tokens=30000, messages=user("hello"), thinking=THINK,
                               extra_body={"ignore_eos": True}) as stream:
        for event in stream:
            if event.type == "content_block_delta":
                break
    until(lambda: finished("cancelled") == before + 1, "the turn's end")
