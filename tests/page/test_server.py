"""The page as `martlet serve` serves it: the parts that must fit together.

`martlet serve --script script.txt` answers at $PAGE_SCRIPT_URL; the model itself, with a key, at $PAGE_MODEL_URL.
"""

import os
import re

import pytest

SCRIPT = os.environ.get("PAGE_SCRIPT_URL")
MODEL = os.environ.get("PAGE_MODEL_URL")
KEY = os.environ.get("PAGE_KEY")
WEATHER = """[{"name": "weather", "parameters": {"type": "object", "properties": {
    "town": {"type": "string"}, "days": {"type": "integer"}}, "required": ["town"]}}]"""

pytestmark = pytest.mark.skipif(not SCRIPT, reason="PAGE_SCRIPT_URL names no server")


def test_the_policy_is_strict(chat_at):
    response = chat_at(SCRIPT).page.request.get(SCRIPT)
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy


def test_fledgling_answers_when_it_got_the_key(browser):
    context = browser.new_context()
    page = context.new_page()
    page.goto(MODEL)
    page.fill("#key-field", KEY)
    page.keyboard.press("Enter")
    page.locator("#model option").wait_for(state="attached")
    page.get_by_role("button", name="Thinking").click()
    page.fill("#message", "What is the capital of Norway?")
    page.keyboard.press("Enter")
    page.locator("article.assistant .body > *").first.wait_for()
    page.locator("#send").wait_for()
    usage = page.locator("article.assistant .usage").inner_text()
    assert re.search(r"^\d+ tokens? · .*first after [\d.]+ s · prompt \d+", usage), usage
    assert page.locator("article .note").count() == 0 or not page.locator("article .note").is_visible()
    context.close()


def test_thinking_is_folded_and_markdown_is_shown(chat_at):
    chat = chat_at(SCRIPT)
    chat.say("show me markdown")
    thinking = chat.last().locator("details.thinking")
    assert not thinking.locator(".markdown").is_visible()
    thinking.locator("summary").click()
    assert "The person wants to see markdown." in thinking.inner_text()
    body = chat.last().locator(".body")
    assert body.locator("h3").inner_text() == "A small tour"
    assert body.locator("table td").count() == 6
    assert "thinking" in chat.last().locator(".usage").inner_text()


def test_hostile_output_stays_text(chat_at):
    chat = chat_at(SCRIPT)
    chat.say("be hostile")
    assert "the end of it" in chat.texts()[-1]
    assert chat.page.evaluate("window.hacked") is None
    assert chat.last().locator("img, script, iframe, style, form").count() == 0


def test_tools_are_called_and_answered(chat_at):
    chat = chat_at(SCRIPT)
    chat.button("Settings").click()
    chat.page.get_by_text("Tools", exact=True).click()
    chat.page.fill("#tools", WEATHER)
    chat.button("Done").click()
    chat.say("check the weather")
    assert chat.last().locator(".call-name").inner_text().split() == ["Calls", "weather"]
    assert '"town": "Bergen <b>& \\"Oslo\\"</b>"' in chat.last().locator(".call pre").inner_text()
    chat.page.get_by_label("Result of weather").fill("rain, 7 degrees")
    chat.button("Send result").click()
    chat.page.locator("#messages").get_by_text("It rains in Bergen.").wait_for()


def test_stopping_ends_the_turn_on_the_server(chat_at):
    chat = chat_at(SCRIPT)
    chat.say("talk for ever", wait=False)
    chat.last().locator(".body > *").first.wait_for()
    chat.button("Stop").click()
    chat.finish()
    assert chat.last().locator(".note").inner_text() == "Stopped."
    for _ in range(100):
        if chat.page.request.get(f"{SCRIPT}/stats").json()["requests"]["turns"] == 0:
            break
        chat.page.wait_for_timeout(50)
    else:
        pytest.fail("the turn goes on")
