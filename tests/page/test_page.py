"""The page in Chromium, against the stub: everything that it does, and everything that may go wrong."""

import json
import re

import pytest

MARK = "article.assistant .body"


def test_an_answer_streams_and_says_what_it_took(chat):
    chat.say("be slow", wait=False)
    body = chat.page.locator(MARK)
    chat.page.locator("#messages").get_by_text("word 3", exact=True).wait_for()
    assert body.locator("p").count() < 1000, "it came all at once"
    live = chat.last().locator(".usage").inner_text()
    assert re.search(r"^\d+ tokens · \d+\.\d tokens/s · .*prompt 1,234$", live), live
    chat.button("Stop").click()
    chat.finish()
    chat.button("New conversation").click()
    chat.say("tell about fish")
    assert chat.texts() == ["tell about fish", "Fish have no feet either."]
    usage = chat.last().locator(".usage").inner_text()
    assert re.search(r"^\d+ tokens · .*first after \d\.\d\d s · prompt 1,234 \(12 from cache\) · thinking 3$", usage), (
        usage
    )


def test_stopping_keeps_what_came_and_lets_the_server_go(chat, stub):
    chat.say("be slow", wait=False)
    chat.page.locator("#messages").get_by_text("word 1", exact=True).wait_for()
    chat.page.keyboard.press("Escape")
    chat.finish()
    assert "word 1" in chat.texts()[1]
    assert chat.last().locator(".note").inner_text() == "Stopped."
    assert stub.gone.wait(10), "the stream is still read"
    chat.say("and now")
    assert [m["role"] for m in stub.bodies[-1]["messages"]] == ["user", "assistant", "user"]


def test_the_prompt_s_progress_shows(chat):
    chat.say("be slow to read", wait=False)
    chat.page.locator("#messages").get_by_text("Reading the prompt: 512 of 2,048 tokens").wait_for()
    chat.finish()


def test_thinking_is_folded_and_can_be_turned_off(chat, stub):
    chat.say("show me markdown")
    thinking = chat.last().locator("details.thinking")
    assert "Thought" in thinking.locator("summary").inner_text()
    assert not thinking.locator(".markdown").is_visible()
    thinking.locator("summary").click()
    assert thinking.locator("ol > li").all_inner_texts() == ["headings and lists,", "code,", "a table."]
    assert stub.bodies[-1]["chat_template_kwargs"] == {"enable_thinking": True}
    chat.button("Thinking").click()
    chat.say("show me markdown again")
    assert stub.bodies[-1]["chat_template_kwargs"] == {"enable_thinking": False}
    assert not chat.last().locator("details.thinking").is_visible()


def test_markdown(chat):
    chat.say("show me markdown")
    body = chat.last().locator(".body")
    texts = lambda selector: body.locator(selector).all_inner_texts()
    assert texts("h3, h4, h5") == ["A small tour", "Lists", "Code"]
    assert texts("p strong") == ["bold", "both"] and texts("p > em")[0] == "italic" and texts("s") == ["gone"]
    assert "snake_case_stays, 2 * 3 * 4" in body.inner_text()
    assert texts("a") == ["address", "https://example.com/x_y_z"]
    assert body.locator("a").first.get_attribute("href") == "https://example.com/a_(b)?q=1&r=2"
    assert body.locator("ul ul ul li").inner_text() == "deeper"
    assert [box.is_checked() for box in body.locator("li.task input").all()] == [True, False]
    assert body.locator("ol").get_attribute("start") == "3"
    assert body.locator("ol .code pre").inner_text() == "# a comment\necho \"$HOME\" | grep -v 'x'"
    assert texts(".code-head span") == ["sh", "rust", "python", "json", "diff"]
    rust = body.locator(".code").nth(1)
    assert rust.locator(".code-keyword").all_inner_texts() == ["fn", "let", "match"]
    assert rust.locator(".code-string").all_inner_texts() == ['"a \\"quoted\\" string"']
    assert texts("td") == ["a", "b|c", "1,000", "long words in a cell", "x", "2"]
    assert texts("blockquote blockquote") == ["and one inside."]
    assert texts("code.maths") == ["$$e^{i\\pi} + 1 = 0$$", "\\(a_1 * b_1 * c_1\\)"]


def test_streamed_markdown_is_what_whole_markdown_is(chat, stub):
    """The blocks that stream in pieces end as they would be made at once."""
    markdown = next(text for words, text in stub.script if words == "show me markdown").partition("</think>")[2].strip()
    same = chat.page.evaluate(
        """async (text) => {
            const { showMarkdown } = await import("/page/markdown.js");
            const whole = document.createElement("div");
            showMarkdown(text, whole);
            const grown = document.createElement("div");
            for (let i = 0; i <= text.length; i += 1) showMarkdown(text.slice(0, i), grown);
            return whole.isEqualNode(grown);
        }""",
        markdown,
    )
    assert same


@pytest.mark.parametrize(
    "text",
    [">" * 50000, "- " * 30000, "[" * 60000, "*a " * 20000, "`" * 40000, "_" * 40000, "![](" * 15000, "<http://" * 9000]
    + [
        "|-" * 30000 + "\n" + "|-" * 30000,
        "$$" * 30000,
        "\\(" * 30000,
        "(((" * 20000,
        "1. " * 20000,
        "\n".join(["- a"] * 20000),
    ]
    + [
        "\n".join(" " * (2 * i) + "- x" for i in range(400)),
        "a|b\n" * 10000,
        "```\n" * 10001,
        "http://" + ")" * 29000,
        "\t" * 50000 + "x",
        "# a" + " " * 150000 + "b",
    ],
    ids=lambda text: repr(text[:8]),
)
def test_no_text_takes_long_or_is_lost(chat, text):
    shown = chat.page.evaluate(
        """async (text) => {
            const { showMarkdown } = await import("/page/markdown.js");
            const parent = document.createElement("div");
            const began = performance.now();
            showMarkdown(text, parent);
            return { ms: performance.now() - began, deepest: (function depth(n) { return 1 + Math.max(0, ...[...n.children].slice(0, 50).map(depth)); })(parent) };
        }""",
        text,
    )
    # Quadratic work would take minutes; the bound only tells the two apart.
    assert shown["ms"] < 10000 and shown["deepest"] < 80, shown


def test_hostile_output_stays_inert(chat):
    dialogs = []
    chat.page.on("dialog", lambda dialog: dialogs.append(dialog.message) or dialog.dismiss())
    chat.say("be hostile")
    chat.last().locator("details.thinking summary").click()
    messages = chat.page.locator("#messages")
    assert "the end of it" in chat.texts()[-1]
    assert "<script>window.hacked=1</script>" in chat.texts()[-1], "it is shown as it stands"
    assert (
        messages.locator(
            "img, script, iframe, style, object, embed, form:not(.results), [onerror], [onclick], [onmouseover], [style]"
        ).count()
        == 0
    )
    assert messages.locator("svg:not(.icon)").count() == 0
    links = messages.locator("a").evaluate_all(
        "all => all.map((a) => [a.protocol, a.rel, a.target, a.getAttributeNames().length])"
    )
    assert links and all(link == ["https:", "noopener noreferrer", "_blank", 5] for link in links), links
    for element in messages.locator(".body *").all()[:200]:
        element.dispatch_event("mouseover")
    assert chat.page.evaluate("window.hacked") is None
    assert dialogs == []


def test_a_reload_keeps_the_conversation(chat):
    chat.say("tell about birds")
    chat.say("tell about fish")
    before = chat.texts()
    chat.page.reload()
    assert chat.texts() == []
    chat.button("tell about birds").click()
    assert chat.texts() == before
    assert "tokens" in chat.last().locator(".usage").inner_text()


def test_a_reload_in_the_middle_keeps_what_came(chat):
    chat.say("be slow", wait=False)
    chat.page.locator("#messages").get_by_text("word 2", exact=True).wait_for()
    chat.page.reload()
    chat.button("be slow").click()
    assert "word 2" in chat.texts()[1]


def test_another_answer_is_another_branch(chat):
    first, second = "The martlet is a bird without feet.", "A second look: martlets never land."
    chat.say("tell about birds")
    chat.button("Another answer").click()
    chat.page.locator("#messages").get_by_text(second).wait_for()
    chat.finish()
    assert chat.texts() == ["tell about birds", second]
    branches = chat.page.get_by_role("group", name="Branches")
    assert branches.inner_text() == "2/2"
    chat.button("Previous branch").click()
    assert chat.texts() == ["tell about birds", first]
    assert chat.button("Previous branch").is_disabled()
    chat.page.reload()
    chat.button("tell about birds").click()
    assert chat.texts() == ["tell about birds", first], "the branch that was shown is shown again"
    chat.button("Next branch").click()
    assert chat.texts()[1] == second


def test_an_edited_message_is_another_branch(chat, stub):
    chat.say("tell about birds")
    chat.say("and then")
    chat.page.locator("article.user").first.get_by_role("button", name="Edit").click()
    editor = chat.page.get_by_label("Edited message")
    assert editor.evaluate("e => e === document.activeElement")
    editor.fill("tell about fish")
    chat.button("Send", chat.page.locator("article")).click()
    chat.page.locator("#messages").get_by_text("Fish have no feet either.").wait_for()
    chat.finish()
    assert chat.texts() == ["tell about fish", "Fish have no feet either."]
    assert [m["content"] for m in stub.bodies[-1]["messages"]] == ["tell about fish"]
    chat.button("Previous branch").click()
    assert len(chat.texts()) == 4 and chat.texts()[0] == "tell about birds", "what followed is there too"
    chat.page.keyboard.press("Escape")


def test_an_answer_can_be_written_anew(chat, stub):
    chat.say("tell about fish")
    chat.last().get_by_role("button", name="Edit").click()
    chat.page.get_by_label("Edited message").fill("Fish fly.")
    chat.button("Keep").click()
    assert chat.texts() == ["tell about fish", "Fish fly."]
    chat.say("go on")
    assert [m["content"] for m in stub.bodies[-1]["messages"]] == ["tell about fish", "Fish fly.", "go on"]


def test_tools_are_shown_and_answered(chat, stub):
    chat.button("Settings").click()
    chat.page.get_by_text("Tools", exact=True).click()
    chat.page.fill("#tools", "[{")
    assert "no JSON" in chat.page.locator("#tools-error").inner_text()
    chat.page.fill("#tools", '[{"name": "weather", "parameters": {"type": "object"}}]')
    assert chat.page.locator("#tools-error").inner_text() == ""
    chat.button("Done").click()
    chat.say("check the weather")
    assert stub.bodies[-1]["tools"] == [
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    ]
    assert chat.last().locator(".call-name").inner_text().split() == ["Calls", "weather"]
    shown = chat.last().locator(".call pre").inner_text()
    assert json.loads(shown) == {"town": 'Bergen <b>& "Oslo"</b>', "days": 3}
    chat.page.get_by_label("Result of weather").fill("rain, 7 degrees")
    chat.button("Send result").click()
    chat.page.locator("#messages").get_by_text("It rains in Bergen.").wait_for()
    chat.finish()
    asked = stub.bodies[-1]["messages"]
    assert [m["role"] for m in asked] == ["user", "assistant", "tool"]
    assert json.loads(asked[1]["tool_calls"][0]["function"]["arguments"])["days"] == 3
    assert asked[1]["reasoning_content"] == "I need the tool." and asked[1]["content"] == "I will look."
    assert asked[2] == {"role": "tool", "tool_call_id": "call_1", "content": "rain, 7 degrees"}


def test_settings_reach_the_request(chat, stub):
    chat.say("first")
    names = ("temperature", "top_p", "top_k", "max_tokens", "seed", "reasoning_effort", "tools")
    assert not any(name in stub.bodies[-1] for name in names), "what is empty is not sent"
    chat.button("Settings").click()
    chat.page.get_by_label("Temperature").fill("0.5")
    chat.page.get_by_label("Top k").fill("20")
    chat.page.get_by_label("Top p").fill("7")
    chat.page.get_by_label("Seed").fill("0")
    chat.page.get_by_label("Effort of thinking").select_option("low")
    chat.page.get_by_label("System prompt of new conversations").fill("Be brief.")
    chat.button("Done").click()
    chat.page.reload()
    chat.page.get_by_label("Model", exact=True).select_option("other")
    chat.page.locator(".system summary").click()
    assert chat.page.get_by_label("System prompt of this conversation").input_value() == "Be brief."
    chat.page.get_by_label("System prompt of this conversation").fill("Be long.")
    chat.say("second")
    body = stub.bodies[-1]
    assert (body["model"], body["temperature"], body["top_k"], body["seed"]) == ("other", 0.5, 20, 0)
    assert "top_p" not in body, "7 is no share"
    assert body["reasoning_effort"] == "low"
    assert body["messages"] == [{"role": "system", "content": "Be long."}, {"role": "user", "content": "second"}]
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    chat.button("Settings").click()
    chat.button("Back to defaults").click()
    chat.button("Done").click()
    chat.say("third")
    assert not any(name in stub.bodies[-1] for name in names)


PASTE = """(size) => new Promise((done) => {
    const canvas = document.createElement("canvas");
    canvas.width = size;
    canvas.height = 8;
    canvas.getContext("2d").fillRect(0, 0, size, 8);
    canvas.toBlob((blob) => {
        const data = new DataTransfer();
        data.items.add(new File([blob], "a.png", { type: "image/png" }));
        document.getElementById("message").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
        done();
    });
})"""


def test_images_can_be_pasted_if_the_model_sees(chat_at, stub):
    chat = chat_at(stub.url)
    chat.page.evaluate(PASTE, 16)
    chat.page.get_by_text("This model does not see images.").wait_for()
    stub.vision = True
    chat = chat_at(stub.url)
    chat.page.evaluate(PASTE, 4096)
    chat.page.locator("#pictures canvas").wait_for()
    chat.say("what is it")
    parts = stub.bodies[-1]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text"]
    assert parts[0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert chat.page.locator("#pictures li").count() == 0
    width = "() => document.querySelector('article .images canvas').width"
    chat.page.wait_for_function("() => document.querySelector('article .images canvas').width === 2048")
    chat.page.reload()
    chat.button("what is it").click()
    chat.page.wait_for_function("() => document.querySelector('article .images canvas').width === 2048")
    assert chat.page.evaluate(width) == 2048


@pytest.mark.parametrize(
    "ask, words",
    [
        ("be broken", "The connection broke before the answer was whole."),
        ("be mistaken", "the engine ran out of memory"),
        ("be busy", "The server is busy: 256 requests are running and waiting Try again in 7 s."),
        ("be too long", "the prompt has 40000 tokens, and the context 32768"),
    ],
)
def test_errors_are_said_in_words(chat, ask, words):
    chat.say(ask)
    note = chat.last().locator(".note")
    assert note.inner_text() == words
    if ask in ("be broken", "be mistaken"):
        assert chat.texts()[1] == "Half an", "what came stays"
    chat.button("Another answer").click()
    chat.finish()
    assert chat.page.get_by_role("group", name="Branches").inner_text() == "2/2"


def test_a_cut_answer_says_so(chat):
    chat.say("be cut off")
    assert "limit of tokens" in chat.last().locator(".note").inner_text()


def test_a_server_that_is_gone_is_named(chat):
    chat.context.set_offline(True)
    chat.say("hello")
    assert chat.last().locator(".note").inner_text() == "The server can not be reached. Is it still running?"


def test_a_key_is_asked_for_and_not_kept_for_others(browser, stub):
    stub.key = "secret"
    context = browser.new_context()
    page = context.new_page()
    page.goto(stub.url)
    page.fill("#key-field", "wrong")
    page.keyboard.press("Enter")
    page.get_by_text("the API key is not known here").wait_for()
    page.fill("#key-field", "secret")
    page.keyboard.press("Enter")
    page.locator("#model option").first.wait_for(state="attached")
    page.fill("#message", "tell about fish")
    page.keyboard.press("Enter")
    page.locator("#messages").get_by_text("Fish have no feet either.").wait_for()
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    page.locator("#model option").first.wait_for(state="attached")
    assert not page.locator("#key").is_visible()
    context.close()


def test_conversations_are_deleted_renamed_exported_and_imported(chat_at, stub, tmp_path):
    chat = chat_at(stub.url)
    chat.say("tell about birds")
    chat.button("New conversation").click()
    chat.say("tell about fish")
    chat.page.once("dialog", lambda dialog: dialog.accept("Fish"))
    chat.button("Rename tell about fish").click()
    titles = lambda: chat.page.locator("#conversations .open").all_inner_texts()
    assert titles() == ["Fish", "tell about birds"]
    with chat.page.expect_download() as download:
        chat.button("Export").click()
    file = tmp_path / "conversations.json"
    download.value.save_as(file)
    chat.button("Delete Fish").click()
    assert titles() == ["tell about birds"] and chat.texts() == []
    chat.button("Undo").click()
    assert titles() == ["Fish", "tell about birds"] and chat.texts()[0] == "tell about fish"
    chat.button("Delete tell about birds").click()
    chat.page.reload()
    assert titles() == ["Fish"]
    chat.page.set_input_files("#import-file", file)
    chat.page.get_by_text("Imported 1, 1 were here already.").wait_for()
    chat.button("tell about birds").click()
    assert chat.texts() == ["tell about birds", "The martlet is a bird without feet."]
    chat.page.reload()
    assert titles() == ["Fish", "tell about birds"]
    chat.page.once("dialog", lambda dialog: dialog.accept())
    chat.button("Settings").click()
    chat.button("Delete all conversations").click()
    assert titles() == []


def test_foreign_files_and_storage_do_no_harm(chat, tmp_path):
    file = tmp_path / "foreign.json"
    nodes = [
        {"role": "system", "content": 5, "parent": 9},
        {
            "role": "assistant",
            "content": "<img src=x onerror=alert(1)>",
            "calls": [None, {}],
            "parent": 0,
            "usage": "x",
            "seconds": 7,
        },
    ]
    nodes.append(
        {"role": "user", "content": "seen", "parent": 1, "images": ["javascript:1", "data:image/svg+xml;base64,AA=="]}
    )
    strange = {"id": "x", "title": "<b>strange</b>", "nodes": nodes, "chosen": {"-1": 0, "0": 1, "1": 1, "5": 2}}
    file.write_text(
        json.dumps(
            {"format": "martlet-conversations", "conversations": [strange, None, {"id": 5}, {"id": "y", "nodes": []}]}
        )
    )
    chat.page.set_input_files("#import-file", file)
    chat.page.get_by_text("Imported 1, 3 could not be read.").wait_for()
    chat.button("<b>strange</b>").click()
    assert chat.texts() == ["", "<img src=x onerror=alert(1)>", "seen"]
    file.write_text("{}")
    chat.page.set_input_files("#import-file", file)
    chat.page.get_by_text("This file holds no conversations of martlet.").wait_for()
    chat.page.evaluate("localStorage['martlet.conversation.z'] = '{'; localStorage['martlet.settings'] = '[7]'")
    chat.page.reload()
    assert chat.page.locator("#conversations .open").count() == 1


def test_full_storage_is_said(chat):
    chat.page.evaluate("""() => {
        let piece = "x".repeat(1 << 20);
        while (piece) {
            try { localStorage["fill" + localStorage.length] = piece; } catch { piece = piece.slice(0, piece.length >> 1); }
        }
    }""")
    chat.say("tell about fish")
    chat.page.get_by_text("The browser keeps no more").wait_for()
    assert chat.texts()[1] == "Fish have no feet either."


def test_two_tabs_see_each_other(chat_at, stub):
    one = chat_at(stub.url)
    two = chat_at(stub.url, context=one.context)
    one.say("tell about birds")
    two.button("tell about birds").click()
    assert two.texts() == one.texts()
    two.say("and more")
    one.page.locator("#messages").get_by_text("and more").wait_for()
    one.button("Delete tell about birds").click()
    two.page.get_by_text("What shall we talk about?").wait_for()


def test_conversations_are_answered_beside_each_other(chat):
    chat.say("be slow", wait=False)
    chat.page.locator("#messages").get_by_text("word 1", exact=True).wait_for()
    chat.button("New conversation").click()
    chat.say("tell about fish")
    assert chat.texts() == ["tell about fish", "Fish have no feet either."]
    assert chat.page.get_by_role("img", name="being answered").count() == 1
    chat.page.locator("#conversations .open", has_text="be slow").click()
    chat.button("Stop").click()
    chat.finish()
    assert chat.last().locator(".note").inner_text() == "Stopped."


def test_the_keyboard_is_enough(chat):
    page = chat.page
    focus = lambda: page.evaluate(
        "document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
    )
    assert focus() == "message"
    page.keyboard.type("line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("line")
    page.keyboard.press("Enter")
    chat.finish()
    assert chat.texts()[0] == "line\nline" and focus() == "message"
    page.keyboard.press("ArrowUp")
    assert focus() == "Edited message"
    page.keyboard.type(" more")
    page.keyboard.press("Control+Enter")
    chat.page.get_by_role("group", name="Branches").wait_for()
    chat.finish()
    assert chat.texts()[0] == "line\nline more"
    chat.button("Previous branch").focus()
    page.keyboard.press("Enter")
    assert chat.texts()[0] == "line\nline"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert chat.texts()[0] == "line\nline more", "the focus stayed at the branches"
    page.keyboard.press("Control+Shift+O")
    assert chat.texts() == [] and focus() == "message"
    page.keyboard.press("Control+/")
    assert page.locator("#shortcuts").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#shortcuts").is_visible() and focus() == "message"
    page.keyboard.press("Control+,")
    assert page.locator("#settings").is_visible()
    page.keyboard.press("Escape")
    assert focus() == "message"


def test_answers_are_spoken_once_and_in_order(chat):
    chat.say("show me markdown")
    spoken = chat.page.locator("#spoken")
    assert spoken.get_attribute("aria-live") == "polite"
    said = spoken.locator("p").all_text_contents()
    assert said[-1] == "The answer is complete." and "Euler" in said[-2]
    assert len(said) == len(set(said))


def test_what_was_unfolded_stays_so_when_the_answer_is_whole(chat):
    chat.say("be slow to think", wait=False)
    chat.page.get_by_text("Thinking", exact=False).and_(chat.page.locator("summary span")).wait_for()
    chat.last().locator("details.thinking summary").click()
    assert chat.button("Edit, as another branch").first.is_disabled()
    chat.finish()
    assert "Thought for" in chat.last().locator("summary").inner_text()
    assert chat.last().locator("details.thinking .markdown").is_visible()
    assert chat.button("Edit, as another branch").first.is_enabled()


def test_the_view_follows_until_somebody_scrolls(chat):
    chat.say("be slow", wait=False)
    page, at_end = chat.page, "e => e.scrollHeight - e.scrollTop - e.clientHeight < 60"
    page.locator("#messages").get_by_text("word 60", exact=True).wait_for()
    page.wait_for_function("() => { const e = document.getElementById('scroll'); return e.scrollTop > 0; }")
    page.locator("#scroll").hover()
    page.mouse.wheel(0, -100000)
    page.get_by_role("button", name="To the end").wait_for()
    page.locator("#messages").get_by_text("word 120", exact=True).wait_for(state="attached")
    page.wait_for_function("() => document.getElementById('scroll').scrollTop < 50")
    page.get_by_role("button", name="To the end").click()
    assert page.locator("#scroll").evaluate(at_end)
    chat.button("Stop").click()


@pytest.mark.parametrize(
    "name, options",
    [
        ("light", {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}}),
        ("dark", {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}}),
        (
            "narrow",
            {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
        ),
        (
            "narrow-dark",
            {"color_scheme": "dark", "viewport": {"width": 320, "height": 640}, "has_touch": True, "is_mobile": True},
        ),
    ],
)
def test_it_is_accessible_and_fits(chat_at, stub, shot, name, options):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    stub.vision = True
    chat = chat_at(stub.url, **options)

    def check(place):
        shot(chat, f"{name}-{place}")
        results = axe.run(chat.page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]})
        assert results.violations_count == 0, results.generate_report()
        assert chat.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"

    narrow = name.startswith("narrow")
    send = lambda text: (chat.page.fill("#message", text), chat.button("Send").click(), chat.finish())
    check("empty")
    for text in ("be mistaken", "be hostile", "show me markdown", "check the weather"):
        send(text)
        shot(chat, f"{name}-{text.split()[-1]}")
    check("weather")
    chat.page.locator("article.user").last.get_by_role("button", name="Edit").click()
    check("edit")
    chat.button("Cancel").click()
    chat.page.locator("#scroll").evaluate("e => e.scrollTop = 0")
    shot(chat, f"{name}-top")
    chat.button("Settings").click()
    chat.page.get_by_text("Tools", exact=True).click()
    check("settings")
    chat.button("Done").click()
    if narrow:
        chat.button("Conversations").click()
        chat.page.wait_for_timeout(300)
        check("menu")
        chat.page.mouse.click(options["viewport"]["width"] - 10, 300)
        chat.page.locator("#sidebar").wait_for(state="hidden")


def test_the_switch_of_colours(chat):
    ground = lambda: chat.page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = ground()
    chat.page.locator("#theme").click()
    assert ground() == light
    chat.page.locator("#theme").click()
    assert ground() != light
    chat.page.reload()
    assert ground() != light
    assert chat.page.locator("#theme").get_attribute("aria-label") == "Colours: dark"
