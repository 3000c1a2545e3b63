"""Requests in the shapes that coding agents send, with texts of our own: all must be answered."""

import base64
import json
import struct
import urllib.request
import zlib

import pytest
from support import *

WORDS = "Read before you write. Keep changes small. Say what you did. " * 40
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Path of the file", "minLength": 1},
        "limit": {"description": "Lines", "anyOf": [{"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991}, {"type": "null"}]},
        "edits": {"type": "array", "maxItems": 64, "items": {"$ref": "#/$defs/edit"}},
        "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast", "pattern": "^[a-z]+$"},
        "env": {"type": "object", "additionalProperties": {"type": "string"}, "propertyNames": {"type": "string"}},
    },
    "$defs": {"edit": {"type": "object", "properties": {"old": {"type": "string"}, "new": {"type": "string"}}, "required": ["old", "new"]}},
    "required": ["path"],
    "additionalProperties": False,
}


def png():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0abc")) + chunk(b"IEND", b"")).decode()


def ask(path, body):
    """The events of a stream, as (name, data)."""
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01", "accept": "text/event-stream",
               "anthropic-beta": "context-management-2025-06-27,interleaved-thinking-2025-05-14"}
    request = urllib.request.Request(SCRIPT_URL + path, data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        assert response.status == 200 and response.headers["content-type"].startswith("text/event-stream")
        frames = response.read().decode().split("\n\n")
    events, name = [], None
    for line in "\n".join(frames).splitlines():
        if line.startswith("event: "):
            name = line[7:]
        if line.startswith("data: ") and line != "data: [DONE]":
            events.append((name, json.loads(line[6:])))
            name = None
    return events


def anthropic_body(last):
    tools = [{"name": f"Tool{i}", "description": WORDS[:200], "input_schema": SCHEMA} for i in range(39)]
    tools += [{"name": "get_weather", "description": "w", "input_schema": WEATHER, "cache_control": {"type": "ephemeral"}},
              {"name": "Later", "description": "Not loaded", "input_schema": {"type": "object", "properties": {}}, "defer_loading": True}]
    return {
        "model": "fledgling", "max_tokens": 32000, "stream": True,
        "thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": json.dumps({"device_id": "d", "session_id": "s"})},
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli;"},
            {"type": "text", "text": WORDS, "cache_control": {"type": "ephemeral"}},
        ],
        "tools": tools,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nLate news.\n</system-reminder>"},
                                         {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": [{"type": "text", "text": "# Environment\nLinux"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "", "signature": "unknown"},
                {"type": "redacted_thinking", "data": "eA=="},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_a", "name": "Tool1", "input": {"path": "a.png", "limit": None}},
                {"type": "tool_use", "id": "toolu_b", "name": "Tool2", "input": {"path": "b"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_a", "content": [
                    {"type": "text", "text": "a picture"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png()}}]},
                {"type": "tool_result", "tool_use_id": "toolu_b", "content": "", "is_error": True},
                {"type": "text", "text": last}]},
        ],
    }


def test_messages_of_an_agent():
    events = ask("/v1/messages?beta=true", anthropic_body("weather in Oslo"))
    started = [data["content_block"] for name, data in events if name == "content_block_start"]
    assert started[-1]["type"] == "tool_use" and started[-1]["name"] == "get_weather"
    pieces = [data["delta"].get("partial_json", "") for name, data in events if name == "content_block_delta"]
    assert json.loads("".join(pieces)) == {"city": "Oslo", "days": 1}
    assert [data["delta"]["stop_reason"] for name, data in events if name == "message_delta"] == ["tool_use"]


def test_counting_the_same_request():
    body = anthropic_body("weather in Oslo")
    for field in ["stream", "max_tokens", "metadata"]:
        del body[field]
    status, counted = raw("POST", "/v1/messages/count_tokens?beta=true", json.dumps(body).encode(), url=SCRIPT_URL)
    assert status == 200 and counted["input_tokens"] > 5000


def test_responses_of_an_agent():
    tools = [{"type": "function", "name": f"tool_{i}", "description": WORDS[:200], "strict": False, "parameters": SCHEMA} for i in range(38)]
    tools += [
        {"type": "function", "name": "get_weather", "description": "w", "strict": False, "parameters": WEATHER},
        {"type": "namespace", "name": "many_agents", "description": "d", "tools": [
            {"type": "function", "name": "wait", "description": "w", "strict": False, "parameters": SCHEMA}]},
        {"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "web_search", "external_web_access": True},
        {"type": "image_generation", "output_format": "png"},
        {"type": "local_shell"},
    ]
    item = {"type": "message", "id": "msg_1"}
    body = {
        "model": "fledgling", "stream": True, "store": False, "tool_choice": "auto", "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "key",
        "client_metadata": {"x-turn": "1"}, "text": {"verbosity": "low"}, "tools": tools,
        "input": [
            item | {"role": "developer", "content": [{"type": "input_text", "text": WORDS}]},
            item | {"role": "user", "content": [{"type": "input_text", "text": "<environment>\n</environment>"}]},
            item | {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "eA=="},
            {"type": "reasoning"},
            {"type": "function_call", "name": "tool_1", "arguments": '{"path": "a"}', "call_id": "call_a"},
            {"type": "function_call", "name": "wait", "namespace": "many_agents", "arguments": '{"path": "b"}', "call_id": "call_b"},
            {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch", "call_id": "call_c"},
            {"type": "function_call_output", "call_id": "call_a", "output": [
                {"type": "input_text", "text": "a picture"},
                {"type": "input_image", "image_url": "data:image/png;base64," + png()}]},
            {"type": "function_call_output", "call_id": "call_b", "output": "done"},
            {"type": "custom_tool_call_output", "call_id": "call_c", "output": "done"},
            item | {"role": "assistant", "content": [{"type": "output_text", "text": "I see.", "annotations": []}]},
            item | {"role": "developer", "content": [{"type": "input_text", "text": "Late news."}]},
            item | {"role": "user", "content": [{"type": "input_text", "text": "weather in Oslo"}]},
        ],
    }
    events = ask("/v1/responses", body)
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert done[-1]["type"] == "function_call" and json.loads(done[-1]["arguments"]) == {"city": "Oslo", "days": 1}
    assert events[-1][0] == "response.completed" and events[-1][1]["response"]["usage"]["input_tokens"] > 5000


@pytest.mark.parametrize("arguments", ['{"path": "a"}', {"path": "a"}, "", "not JSON"])
def test_chat_of_an_agent(arguments):
    tools = [{"type": "function", "function": {"name": f"tool_{i}", "description": WORDS[:200], "parameters": SCHEMA, "strict": True}} for i in range(39)]
    tools += [{"type": "function", "function": {"name": "get_weather", "description": "w", "parameters": WEATHER}}]
    body = {
        "model": "fledgling", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 20000, "tools": tools,
        "tool_choice": "auto", "store": False, "reasoning_effort": "medium",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": WORDS, "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": "hello"},
            {"role": "user", "content": [{"type": "text", "text": "twice", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": [
                {"id": "a", "type": "function", "index": 0, "function": {"name": "tool_1", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "a", "name": "tool_1", "content": None},
            {"role": "system", "content": "Late news."},
            {"role": "user", "content": "weather in Oslo"},
        ],
    }
    events = ask("/v1/chat/completions", body)
    calls = [call for _, data in events for choice in data["choices"] for call in choice["delta"].get("tool_calls") or []]
    assert calls[0]["function"]["name"] == "get_weather" and calls[0]["id"]
    assert json.loads("".join(call["function"].get("arguments") or "" for call in calls)) == {"city": "Oslo", "days": 1}


def test_described():
    status, document = raw("GET", "/openapi.json", url=SCRIPT_URL)
    assert status == 200
    asked = ["/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
             "/v1/models", "/tokenize", "/detokenize", "/health", "/ready", "/metrics"]
    assert [path for path in asked if path not in document["paths"]] == []
