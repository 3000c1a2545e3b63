"""The official Python client of OpenAI against `martlet serve`."""

import json
import typing

import openai
import pydantic
import pytest
from support import *

model = openai.OpenAI(base_url=MODEL_URL + "/v1", api_key=KEY, max_retries=0)
script = openai.OpenAI(base_url=SCRIPT_URL + "/v1", api_key="any", max_retries=0)
NAME = "fledgling"


def user(text):
    return [{"role": "user", "content": text}]


def tool(name, schema):
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


def flat(name, schema):
    return {"type": "function", "name": name, "description": name, "parameters": schema, "strict": False}


class Bird(pydantic.BaseModel):
    # A small model would go on and on.
    name: typing.Annotated[str, pydantic.StringConstraints(max_length=20)]
    legs: typing.Literal[0, 2]
    swift: bool


# Chat completions


def test_models():
    listed = model.models.list().data
    assert NAME in [m.id for m in listed]
    one = model.models.retrieve(NAME)
    assert one.id == NAME and one.object == "model" and one.context_window == 32768
    with pytest.raises(openai.NotFoundError):
        model.models.retrieve("no-such-model")


def test_chat():
    answer = model.chat.completions.create(model=NAME, messages=user("hello"), temperature=0)
    choice = answer.choices[0]
    assert choice.finish_reason == "stop" and choice.message.role == "assistant" and choice.message.content
    assert choice.message.reasoning_content
    usage = answer.usage
    assert usage.prompt_tokens > 0 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    again = model.chat.completions.create(model=NAME, messages=user("hello"), temperature=0)
    assert again.choices[0].message == choice.message
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_thinking_off():
    for extra in [
        {"extra_body": {"enable_thinking": False}},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"reasoning_effort": "none"},
    ]:
        answer = model.chat.completions.create(model=NAME, messages=user("What is 7 + 5?"), temperature=0, **extra)
        assert "12" in answer.choices[0].message.content
        assert not getattr(answer.choices[0].message, "reasoning_content", None)
        assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_shapes_of_messages():
    messages = [
        {"role": "system", "content": "You are a careful assistant."},
        {"role": "developer", "content": [{"type": "text", "text": "Be concise."}]},
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "7 + 5?"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 7, "b": 5}'}}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "12"}]},
        {"role": "system", "content": "A late remark."},
        {"role": "user", "content": "hello", "name": "lola"},
    ]
    answer = model.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=200)
    assert answer.choices[0].message.content is not None
    assert model.chat.completions.create(model=NAME, messages=user("hello"), max_tokens=-1).choices[0].message.content


def test_stream_equals_whole():
    asked = dict(model=NAME, messages=user("Tell me about 47 + 89."), temperature=0)
    whole = model.chat.completions.create(**asked)
    chunks = list(model.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    deltas = [c.choices[0].delta for c in chunks[:-1]]
    assert deltas[0].role == "assistant"
    assert "".join(d.content or "" for d in deltas) == whole.choices[0].message.content
    reasoning = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
    assert reasoning == whole.choices[0].message.reasoning_content
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert not any(c.usage for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1
    without = list(model.chat.completions.create(**asked, stream=True))
    assert not any(c.usage for c in without) and all(c.choices for c in without)


def test_seed_and_n():
    asked = dict(model=NAME, messages=user("Tell me a story with a dog and a ball."), temperature=1.0, max_tokens=60)
    first = model.chat.completions.create(**asked, seed=7, n=2)
    texts = [(c.message.content, c.message.reasoning_content) for c in first.choices]
    assert [c.index for c in first.choices] == [0, 1] and texts[0] != texts[1]
    again = model.chat.completions.create(**asked, seed=7, n=2)
    assert [(c.message.content, c.message.reasoning_content) for c in again.choices] == texts
    both = {0: "", 1: ""}
    for chunk in model.chat.completions.create(**asked, seed=7, n=2, stream=True):
        for choice in chunk.choices:
            both[choice.index] += choice.delta.content or ""
            both[choice.index] += getattr(choice.delta, "reasoning_content", None) or ""
    assert both == {i: (reasoning or "") + (content or "") for i, (content, reasoning) in enumerate(texts)}


def test_lengths():
    for limit in ["max_tokens", "max_completion_tokens"]:
        answer = model.chat.completions.create(model=NAME, messages=user("hello"), **{limit: 3})
        assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3
    budget = model.chat.completions.create(
        model=NAME, messages=user("What is 4642 - 27?"), temperature=0, extra_body={"thinking_budget": 4}
    )
    assert budget.choices[0].message.content and budget.usage.completion_tokens_details.reasoning_tokens <= 8


def test_stop_across_tokens():
    asked = dict(model=NAME, messages=user("Greek letters"), stop=["nothing", "ta gamma"])
    whole = script.chat.completions.create(**asked)
    assert whole.choices[0].message.content == "alpha be" and whole.choices[0].finish_reason == "stop"
    pieces = script.chat.completions.create(**asked, stream=True)
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == "alpha be"


def test_logprobs():
    asked = dict(model=NAME, messages=user("hello"), temperature=0, logprobs=True, top_logprobs=3, reasoning_effort="none")
    whole = model.chat.completions.create(**asked)
    tokens = whole.choices[0].logprobs.content
    said = b"".join(bytes(t.bytes) for t in tokens).decode()
    assert said.startswith(whole.choices[0].message.content)
    for token in tokens:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0
        assert token.top_logprobs[0].token == token.token and token.top_logprobs[0].logprob == token.logprob
    streamed = [c.choices[0].logprobs for c in model.chat.completions.create(**asked, stream=True)]
    assert [t.token for l in streamed if l for t in l.content] == [t.token for t in tokens]


def test_logit_bias():
    answer = model.chat.completions.create(model=NAME, messages=user("hello"), temperature=0, reasoning_effort="none",
                                           max_tokens=1, logprobs=True)
    token = answer.choices[0].logprobs.content[0].token
    _, tokens = raw("POST", "/tokenize", json.dumps({"prompt": token}).encode())
    other = model.chat.completions.create(model=NAME, messages=user("hello"), temperature=0, reasoning_effort="none",
                                          max_tokens=1, logprobs=True, logit_bias={str(tokens["tokens"][0]): -100})
    assert other.choices[0].logprobs.content[0].token != token


def test_bytes_survive():
    asked = dict(model=NAME, messages=user("markdown please"))
    assert script.chat.completions.create(**asked).choices[0].message.content == MARKDOWN
    pieces = [c.choices[0].delta.content for c in script.chat.completions.create(**asked, stream=True)]
    assert "".join(p or "" for p in pieces) == MARKDOWN and len(pieces) > 10


# Tools


def test_parallel_calls_and_their_results():
    tools = [tool("get_weather", WEATHER), tool("write_file", WRITE)]
    asked = dict(model=NAME, tools=tools)
    messages = user("The weather in Paris and Rome?")
    whole = script.chat.completions.create(**asked, messages=messages).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content.strip() == "I look at both."
    calls = whole.message.tool_calls
    assert [c.function.name for c in calls] == ["get_weather"] * 2 and calls[0].id != calls[1].id
    assert [json.loads(c.function.arguments) for c in calls] == [{"city": "Paris"}, {"city": "Rome", "days": 3}]

    with script.chat.completions.stream(**asked, messages=messages) as stream:
        events = list(stream)
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls" and streamed.message.content == whole.message.content
    assert [c.function.arguments for c in streamed.message.tool_calls] == [c.function.arguments for c in calls]
    assert sum(e.type == "tool_calls.function.arguments.delta" for e in events) > 4, "arguments come in pieces"

    messages += [whole.message, *(
        {"role": "tool", "tool_call_id": c.id, "content": text} for c, text in zip(calls, ["rain in Paris", "sunny in Rome"])
    )]
    last = script.chat.completions.create(**asked, messages=messages).choices[0]
    assert last.finish_reason == "stop" and last.message.content == "Paris has rain, Rome has sun."


def test_arguments_to_the_byte():
    asked = dict(model=NAME, tools=[tool("write_file", WRITE)], messages=user("write the file"))
    whole = script.chat.completions.create(**asked).choices[0].message.tool_calls
    assert json.loads(whole[0].function.arguments) == WRITTEN
    pieces, names = "", []
    for chunk in script.chat.completions.create(**asked, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            names += [call.function.name] if call.function.name else []
            pieces += call.function.arguments or ""
    assert json.loads(pieces) == WRITTEN and names == ["write_file"]


def test_choice_of_tools():
    tools = [tool("get_weather", WEATHER), tool("send_email", MAIL_SCHEMA)]
    asked = dict(model=NAME, messages=user("hello"), tools=tools, temperature=0, max_completion_tokens=400)
    none = model.chat.completions.create(**asked, tool_choice="none").choices[0]
    assert none.message.tool_calls is None and none.finish_reason == "stop"
    weather = {"type": "function", "function": {"name": "get_weather"}}
    for choice, names in [
        ("required", {"get_weather", "send_email"}),
        (weather, {"get_weather"}),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [weather]}}, {"get_weather"}),
    ]:
        for extra in [{}, {"reasoning_effort": "none"}]:
            forced = model.chat.completions.create(**asked, tool_choice=choice, parallel_tool_calls=False, **extra)
            calls = forced.choices[0].message.tool_calls
            assert len(calls) == 1 and calls[0].function.name in names
            schema = {"get_weather": WEATHER, "send_email": MAIL_SCHEMA}[calls[0].function.name]
            assert set(schema["required"]) <= set(json.loads(calls[0].function.arguments))
            assert forced.choices[0].finish_reason == "tool_calls"


def test_single_call_of_two():
    asked = dict(model=NAME, tools=[tool("get_weather", WEATHER)], messages=user("weather in Paris and Rome"))
    single = script.chat.completions.create(**asked, parallel_tool_calls=False).choices[0]
    assert [json.loads(c.function.arguments) for c in single.message.tool_calls] == [{"city": "Paris"}]
    assert single.finish_reason == "tool_calls"


def test_fledgling_calls_tools():
    mail = model.chat.completions.create(model=NAME, messages=user(MAIL), temperature=0, reasoning_effort="none",
                                         tools=[tool("send_email", MAIL_SCHEMA), tool("get_weather", WEATHER)])
    call = mail.choices[0].message.tool_calls[0].function
    assert call.name == "send_email" and json.loads(call.arguments) == MAIL_ARGUMENTS
    commands = model.chat.completions.create(model=NAME, messages=user(COMMANDS), temperature=0,
                                             tools=[tool("run_command", COMMAND_SCHEMA)])
    calls = commands.choices[0].message.tool_calls
    assert [json.loads(c.function.arguments) for c in calls] == COMMAND_ARGUMENTS


def test_custom_tool():
    custom = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files."}}
    answer = script.chat.completions.create(model=NAME, tools=[custom], messages=user("patch the file")).choices[0]
    assert answer.message.tool_calls[0].type == "custom"
    assert answer.message.tool_calls[0].custom.input == PATCH


# Structured output


@pytest.mark.parametrize("effort", ["none", "low"])
def test_structured_output(effort):
    parsed = model.chat.completions.parse(model=NAME, messages=user("A bird, please."), response_format=Bird,
                                          temperature=0, reasoning_effort=effort, max_tokens=800)
    assert isinstance(parsed.choices[0].message.parsed, Bird)
    with model.chat.completions.stream(model=NAME, messages=user("A bird, please."), response_format=Bird,
                                       temperature=0, reasoning_effort=effort, max_tokens=800) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed


def test_other_formats():
    def said(**format):
        answer = model.chat.completions.create(model=NAME, messages=user("hello"), temperature=0, max_tokens=300,
                                               reasoning_effort="none", **format)
        return answer.choices[0].message.content

    assert isinstance(json.loads(said(response_format={"type": "json_object"})), dict)
    assert said(extra_body={"structured_outputs": {"choice": ["swift", "swallow"]}}) in ["swift", "swallow"]
    assert said(extra_body={"structured_outputs": {"regex": "[0-9]{4}"}}).isdigit()
    with pytest.raises(openai.BadRequestError, match="response_format"):
        said(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strange"}}})


# Responses


def test_responses():
    answer = model.responses.create(model=NAME, input="hello", instructions="Be concise.", temperature=0)
    assert answer.status == "completed" and answer.output_text
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    second = model.responses.create(model=NAME, input="hello again", previous_response_id=answer.id, temperature=0)
    assert second.usage.input_tokens > answer.usage.input_tokens
    assert model.responses.retrieve(answer.id).output_text == answer.output_text
    assert model.responses.input_items.list(answer.id).data[0].type == "message"
    model.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        model.responses.retrieve(answer.id)
    with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
        model.responses.create(model=NAME, input="and now?", previous_response_id=answer.id)
    unstored = model.responses.create(model=NAME, input="hello", store=False, max_output_tokens=4)
    assert unstored.status == "incomplete" and unstored.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.NotFoundError):
        model.responses.retrieve(unstored.id)


def test_responses_stream():
    with script.responses.stream(model=NAME, input="markdown please") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == MARKDOWN
    types = [e.type for e in events]
    assert types[:2] == ["response.created", "response.in_progress"] and types[-1] == "response.completed"
    order = ["response.output_item.added", "response.content_part.added", "response.output_text.delta",
             "response.output_text.done", "response.content_part.done", "response.output_item.done"]
    text = [t for t in types if t in order]
    of_message = text[max(i for i, t in enumerate(text) if t == "response.output_item.added"):]
    assert list(dict.fromkeys(of_message)) == order
    assert [e.sequence_number for e in script.responses.create(model=NAME, input="Greek letters", stream=True)][:3] == [0, 1, 2]


def test_responses_with_tools():
    tools = [flat("get_weather", WEATHER), {"type": "web_search"}]
    asked = dict(model=NAME, tools=tools)
    first = script.responses.with_raw_response.create(**asked, input="weather in Paris and Rome")
    assert "web_search" in first.headers["x-martlet-warning"]
    first = first.parse()
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(c.arguments) for c in calls] == [{"city": "Paris"}, {"city": "Rome", "days": 3}]
    results = [{"type": "function_call_output", "call_id": c.call_id, "output": text}
               for c, text in zip(calls, ["rain in Paris", "sunny in Rome"])]
    stored = script.responses.create(**asked, input=results, previous_response_id=first.id)
    assert stored.output_text == "Paris has rain, Rome has sun."
    history = [{"role": "user", "content": "weather in Paris and Rome"}, *first.output, *results]
    repeated = script.responses.create(**asked, input=history, store=False)
    assert repeated.output_text == stored.output_text

    with script.responses.stream(**asked, input="weather in Oslo") as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    call = final.output[-1]
    assert call.type == "function_call" and call.arguments == deltas and json.loads(deltas) == {"city": "Oslo", "days": 1}

    custom = script.responses.create(model=NAME, input="patch the file", tools=[{"type": "custom", "name": "apply_patch"}])
    assert custom.output[-1].type == "custom_tool_call" and custom.output[-1].input == PATCH
    done = [{"type": "custom_tool_call_output", "call_id": custom.output[-1].call_id, "output": "snow in Oslo"}]
    assert script.responses.create(model=NAME, input=done, previous_response_id=custom.id).output_text == "It snows in Oslo."


def test_responses_structured():
    parsed = model.responses.parse(model=NAME, input="A bird, please.", text_format=Bird, temperature=0,
                                   reasoning={"effort": "none"}, max_output_tokens=400)
    assert isinstance(parsed.output_parsed, Bird)
    forced = model.responses.create(model=NAME, input="hello", tools=[flat("get_weather", WEATHER)], temperature=0,
                                    tool_choice={"type": "function", "name": "get_weather"}, max_output_tokens=400)
    assert "city" in json.loads(forced.output[-1].arguments)


# Completions


def test_completions():
    asked = dict(model=NAME, prompt="Once upon a time", max_tokens=12, temperature=0)
    whole = model.completions.create(**asked)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12
    assert "".join(c.choices[0].text for c in model.completions.create(**asked, stream=True)) == whole.choices[0].text
    several = model.completions.create(**asked | {"prompt": ["Once upon a time", "One day"]}, echo=True)
    assert several.choices[0].text == "Once upon a time" + whole.choices[0].text
    assert several.choices[1].text.startswith("One day")
    scored = model.completions.create(**asked, logprobs=2).choices[0].logprobs
    assert len(scored.tokens) == 12 and len(scored.top_logprobs[0]) == 2


# Errors, and clients that go


def test_errors():
    def refused(error, **asked):
        with pytest.raises(error) as e:
            model.chat.completions.create(**{"model": NAME, "messages": user("hello")} | asked)
        return e.value

    assert refused(openai.NotFoundError, model="gpt-9").code == "model_not_found"
    assert refused(openai.BadRequestError, temperature=-1).param == "temperature"
    assert refused(openai.BadRequestError, messages=[{"role": "user", "content": 7}]).param == "messages[0].content"
    assert refused(openai.BadRequestError, messages=[]).param == "messages"
    assert refused(openai.BadRequestError, stop=["x"] * 17).param == "stop"
    assert refused(openai.BadRequestError, tool_choice="required").param == "tool_choice"
    long = refused(openai.BadRequestError, messages=user("word " * 40000))
    assert long.code == "context_length_exceeded" and "32768" in str(long)
    assert refused(openai.BadRequestError, messages=user("word " * 40000), stream=True).code == long.code
    stranger = openai.OpenAI(base_url=MODEL_URL + "/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_bodies_that_no_client_sends():
    for body in [b"{:", b"", b"[]", b'{"messages": "\xff"}', b"[" * 100_000]:
        status, answer = raw("POST", "/v1/chat/completions", body)
        assert status == 400 and answer["error"]["message"]
    status, _ = raw("POST", "/v1/chat/completions", b'{"messages": []}', content_type="text/plain")
    assert status in (400, 415)
    status, _ = raw("GET", "/v1/models", host="evil.example", url=SCRIPT_URL)
    assert status == 403
    status, _ = raw("GET", "/v1/models", origin="http://evil.example", url=SCRIPT_URL)
    assert status == 403
    assert raw("GET", "/nowhere")[0] == 404
    assert raw("DELETE", "/v1/chat/completions")[0] == 405


def test_unknown_fields_are_named():
    answer = model.chat.completions.with_raw_response.create(model=NAME, messages=user("hello"), max_tokens=1,
                                                             extra_body={"frobnicate": 1})
    assert "frobnicate" in answer.headers["x-martlet-warning"]


def test_cancel():
    before = finished("cancelled")
    stream = model.chat.completions.create(model=NAME, messages=user("hello"), stream=True,
                                           extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    until(lambda: finished("cancelled") == before + 1, "the turn's end")
    impatient = model.with_options(timeout=0.5)
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(model=NAME, messages=user("hello"), extra_body={"ignore_eos": True})
    until(lambda: finished("cancelled") == before + 2, "the other turn's end")
    assert model.chat.completions.create(model=NAME, messages=user("hello")).choices[0].message.content
