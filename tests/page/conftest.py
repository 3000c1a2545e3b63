"""One browser for all tests; a context, which is a fresh profile, for each."""

import os
import pathlib
import sys

import pytest
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stub import Stub  # noqa: E402

SHOTS = pathlib.Path(os.environ.get("PAGE_TEST_SHOTS", "target/page-test"))


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        # Chromium's sandbox needs rights that containers do not give; the pages are our own.
        chromium = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def stub():
    server = Stub()
    yield server
    server.shutdown()


class Chat:
    """The page as a person uses it."""

    def __init__(self, context, url):
        self.context, self.url = context, url
        self.page = context.new_page()
        self.page.set_default_timeout(15000)
        self.troubles, self.elsewhere = [], []
        self.page.on("console", lambda m: m.type == "error" and self.troubles.append(m.text))
        self.page.on("pageerror", lambda e: self.troubles.append(str(e)))
        self.page.on("request", self.requested)
        self.page.goto(url)
        self.page.locator("#model option").first.wait_for(state="attached")

    def requested(self, request):
        if not request.url.startswith((self.url, f"blob:{self.url}")):
            self.elsewhere.append(request.url)

    def say(self, text, wait=True):
        self.page.fill("#message", text)
        self.page.keyboard.press("Enter")
        if wait:
            self.finish()

    def finish(self):
        self.page.locator("#send").wait_for()
        self.page.locator('article[aria-busy="true"]').wait_for(state="detached")

    def texts(self):
        return self.page.locator("#messages article :is(.text, .body)").all_inner_texts()

    def last(self):
        return self.page.locator("article.assistant").last

    def button(self, name, within=None):
        return (within or self.page).get_by_role("button", name=name, exact=True)


@pytest.fixture
def chat_at(browser):
    """Opens the page at an address; afterwards nothing may have gone wrong in it, or have left for elsewhere."""
    chats, contexts = [], []

    def open_at(url, context=None, **options):
        if context is None:
            context = browser.new_context(**options)
            contexts.append(context)
        chats.append(Chat(context, url))
        return chats[-1]

    yield open_at
    for chat in chats:
        assert chat.elsewhere == []
        # What a server refuses is told in the console by the browser itself.
        assert [t for t in chat.troubles if not t.startswith("Failed to load resource")] == []
    for context in contexts:
        context.close()


@pytest.fixture
def chat(chat_at, stub):
    return chat_at(stub.url)


@pytest.fixture
def shot():
    SHOTS.mkdir(parents=True, exist_ok=True)
    return lambda chat, name: chat.page.screenshot(path=SHOTS / f"{name}.png")
