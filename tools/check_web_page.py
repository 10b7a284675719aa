#!/usr/bin/env python3
"""Drives the server's web page in headless Chromium. Needs Chromium and Playwright: `scripts/test.sh --clients` installs and runs all.

usage: check_web_page.py PALIMPSEST MODEL [--chromium FILE] [--screenshots FOLDER]

Starts PALIMPSEST serve on a free port, once without and once with a key, and does what people do: chat, stop, ask again, edit, look at the
memory, switch layers, come back later. Fails for any script error, any breach of the page's security policy and any request to elsewhere.
Exit code 77 where Chromium or Playwright is not there.
"""

import argparse
import base64
import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    print("SKIPPED: no Playwright (pip install playwright)")
    sys.exit(77)

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"  # a PNG of one pixel
LONGEST = 60_000  # milliseconds that anything may take on a busy machine
HOSTILE = """<img src=x onerror="window.hacked=1"> <script>window.hacked=1</script>
[click](javascript:window.hacked=1) [data](data:text/html,x) ![i](http://elsewhere.invalid/i.png) <http://elsewhere.invalid/?q="onx=1>

| a | b |
| - | - |
| <b>1</b> | `<i>` |

```html
<script>window.hacked=1</script>
```
> > quote **bold** *it* ~~s~~ _u_ snake_case_name \\*not\\*
1. one
2. two
   - nested `code`"""


@contextlib.contextmanager
def serving(program, model, *flags):
    """The address of a server."""
    command = [program, "serve", "-m", model, "--port", "0", "--ctx-size", "4096", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if match := re.search(r"http://\S+:\d+", line):
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True).start()
        yield match[0]
    finally:
        process.terminate()
        process.wait(30)


class Page:
    """A page that remembers what went wrong in it and whom it asked."""

    def __init__(self, browser, address, **options):
        self.address, self.problems = address, []
        self.context = browser.new_context(base_url=address, **options)
        self.context.set_default_timeout(LONGEST)
        expect.set_options(timeout=LONGEST)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("console", lambda m: self.problems.append(f"console: {m.text}") if m.type == "error" and "401" not in m.text and "404" not in m.text else None)
        self.page.on("request", self.asked)

    def asked(self, request):
        if not request.url.startswith((self.address, "blob:", "data:")):
            self.problems.append(f"request to {request.url}")

    def close(self):
        self.context.close()
        assert not self.problems, self.problems


def until(page, script, argument=None):
    """Waits for what a script says. (Playwright's own waiting evaluates text in the page, which its policy forbids.)"""
    end = time.monotonic() + LONGEST / 1000
    while not page.evaluate(script, argument):
        assert time.monotonic() < end, script
        time.sleep(0.05)


def send(page, text):
    page.fill("#input", text)
    page.press("#input", "Enter")


def answered(page, count=1):
    """Waits until nothing is written, and gives the last answer."""
    expect(page.locator(".message.assistant")).to_have_count(count)
    expect(page.locator("#send")).to_be_visible()
    last = page.locator(".message.assistant").last
    expect(last.locator(".note")).to_be_visible()
    assert last.locator(".fault").count() == 0, last.inner_text()
    return last


def setting(page, **values):
    page.keyboard.press("Alt+s")
    for name, value in values.items():
        page.fill(f"#set-{name}", str(value))
    page.click("#settings >> text=Done")


def write_on(route):
    """Keeps the demo model, whose control tokens are those from 3840 on, from ending its answer."""
    body = json.loads(route.request.post_data)
    body["logit_bias"] = {str(token): -100 for token in range(3840, 4096)}
    route.continue_(post_data=json.dumps(body))


def check_chat(p):
    page = p.page
    page.goto("/")
    expect(page.locator("#model")).to_contain_text("4,096 tokens")
    assert not page.locator("#attach").is_visible(), "the model does not see"
    setting(page, temperature=0, max_tokens=40)

    # Snapshots lie at multiples of 64 tokens, so what is to be reused must be longer.
    send(page, "Hello. " + "The old man sat by the sea and looked at the boats. " * 12 + "Who are you?")
    first = answered(page)
    assert first.locator(".body").inner_text().strip() and "written" in first.locator(".note").inner_text()
    send(page, "Tell me of the sea.")
    second = answered(page, 2)
    assert re.search(r"[1-9]\d* reused", second.locator(".note").inner_text()), second.inner_text()

    # Another answer in its place; greedy, so the same one.
    second.get_by_role("button", name="Again").click()
    again = answered(page, 2)
    assert page.locator(".message").count() == 4

    # An earlier message changed: what came after it is gone, what came before it is reused.
    page.locator(".message.user").nth(1).get_by_role("button", name="Edit").click()
    page.fill(".message.user textarea", "Tell me of the mountains.")
    page.press(".message.user textarea", "Enter")
    edited = answered(page, 2)
    assert re.search(r"[1-9]\d* reused", edited.locator(".note").inner_text()), edited.inner_text()
    assert "mountains" in page.locator(".message.user").nth(1).inner_text()

    # Stopped by Esc, and still there to be asked.
    setting(page, max_tokens=3000)
    page.route("**/v1/chat/completions", write_on)
    send(page, "Continue this sentence:\nThe old man")
    until(page, "document.querySelector('#log').lastChild.querySelector('.reasoning') !== null")
    page.keyboard.press("Escape")
    assert "Stopped." in answered(page, 3).inner_text()
    page.unroute("**/v1/chat/completions")
    setting(page, max_tokens=12)
    send(page, "Hello again")
    answered(page, 4)

    # Kept in this browser, and to be had as a file.
    page.reload()
    expect(page.locator(".message")).to_have_count(8)
    with page.expect_download() as download:
        page.click("#export-chat")
    with open(download.value.path(), encoding="utf-8") as file:
        saved = json.load(file)
    assert [m["role"] for m in saved["messages"]] == ["user", "assistant"] * 4
    page.click("#new-chat")
    expect(page.locator(".message")).to_have_count(0)
    page.locator(".chat").nth(1).click()
    expect(page.locator(".message")).to_have_count(8)


def check_markdown(p):
    page = p.page
    page.goto("/")
    result = page.evaluate("""async text => {
      const {render} = await import('/markdown.js');
      const into = document.createElement('div');
      document.body.append(into);
      for (let i = 0; i <= text.length; i += 7) render(into, text.slice(0, i));  // as it streams
      render(into, text);
      const kept = into.firstChild;
      render(into, text + ' more');
      const same = kept === into.firstChild;
      const links = [...into.querySelectorAll('a')].map(a => a.protocol);
      const out = {same, links, shown: into.innerText, made: [...into.querySelectorAll('*')].map(e => e.localName)};
      const start = performance.now();
      render(into, '> '.repeat(5000) + 'x'); render(into, '**a '.repeat(5000)); render(into, '- '.repeat(3000)); render(into, '|'.repeat(9000) + '\\n|-|');
      out.milliseconds = performance.now() - start;
      into.remove();
      return out;
    }""", HOSTILE)
    assert result["same"], "blocks that did not change are kept"
    assert set(result["links"]) <= {"http:", "https:"}, result["links"]
    assert not {"img", "script", "b", "i", "iframe"} & set(result["made"]), result["made"]
    for name in ("table", "blockquote", "ol", "ul", "pre", "strong", "em", "del", "code"):
        assert name in result["made"], name
    assert "snake_case_name" in result["shown"] and "*not*" in result["shown"], result["shown"]
    assert page.evaluate("window.hacked") is None
    assert result["milliseconds"] < 30_000, result["milliseconds"]
    blocked = page.evaluate("""() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch (e) { return true; } }""")
    assert blocked, "markup from text is refused by the browser"
    p.problems = [x for x in p.problems if "TrustedHTML" not in x]


def painted(page, selector):
    """How many different colours a canvas shows."""
    return page.evaluate("""selector => {
      const c = document.querySelector(selector), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
      for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
      return seen.size;
    }""", selector)


def check_memory(p, folder=None, name=""):
    page = p.page
    page.route("**/v1/chat/completions", write_on)
    page.goto("/")
    setting(page, temperature=0.7, seed=11, max_tokens=3000)
    page.keyboard.press("Alt+m")
    expect(page.locator("#memory")).to_be_visible()
    page.evaluate("""() => {
      window.seen = new Set();
      setInterval(() => window.seen.add(document.querySelector('#mem-page').toDataURL()), 30);
    }""")
    send(page, "The password of Alder House is 48213. The password of Birch House is 90417. Tell me a story about both houses and the people in them.")
    expect(page.locator("#mem-body")).to_be_visible()
    expect(page.locator("#mem-pages canvas")).to_have_count(18)
    until(page, "document.querySelectorAll('#mem-tokens .token').length > 20")
    until(page, "window.seen.size > 3")  # nothing, and then one page after the other
    for canvas in ("#mem-page", "#mem-retention", "#mem-experts", "#mem-depth", "#mem-writes", "#mem-pages canvas"):
        assert painted(page, canvas) > 3, canvas
    assert "at 1M tokens" in page.locator("#mem-bytes").inner_text()
    # Another layer and head, with the keyboard alone.
    page.locator("#mem-pages button").nth(0).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#mem-focus-title")).to_contain_text("Layer 1, head 1")
    page.select_option("#mem-layer", "6")
    expect(page.locator("#mem-focus-title")).to_contain_text("Layer 6")
    until(page, "document.querySelector('#mem-retention').width > 3")
    page.keyboard.press("Escape")
    answered(page)
    # The next answer is watched at the same place, prompt included.
    send(page, "What is the password of Alder House? " + "Think of the harbour, the boats, the old man and the long road to the sea. " * 4)
    until(page, "document.querySelector('#mem-retention').width > 60")
    if folder:
        page.screenshot(path=f"{folder}/web-{name}.png")
    page.keyboard.press("Escape")
    answered(page, 2)
    page.keyboard.press("Alt+m")
    expect(page.locator("#memory")).to_be_hidden()


def check_images(p):
    """With a model that sees: what is attached is sent as the interface wants it."""
    page = p.page
    sent = []
    page.route("**/props", lambda route: route.fulfill(json={"model_alias": "m", "n_ctx": 10, "chat": True, "modalities": {"vision": True}, "default_generation_settings": {}}))

    def take(route):
        sent.append(json.loads(route.request.post_data))
        route.fulfill(content_type="text/event-stream", body="data: " + json.dumps({"choices": [{"index": 0, "delta": {"reasoning_content": "hm", "content": "A **dot**", "tool_calls": [
            {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{\"a\": \"<img src=x>\"}"}}]}, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2}}) + "\n\ndata: [DONE]\n\n")

    page.route("**/v1/chat/completions", take)
    page.goto("/")
    expect(page.locator("#attach")).to_be_visible()
    page.set_input_files("#image", {"name": "dot.png", "mimeType": "image/png", "buffer": base64.b64decode(DOT)})
    expect(page.locator("#attachments img")).to_have_count(1)
    for event, target, field in (("paste", "#input", "clipboardData"), ("drop", "#log", "dataTransfer")):
        page.evaluate("""([event, target, field, dot]) => {
          const data = new DataTransfer();
          data.items.add(new File([Uint8Array.from(atob(dot), c => c.charCodeAt(0))], 'dot.png', {type: 'image/png'}));
          const made = event === 'paste' ? new ClipboardEvent(event, {clipboardData: data, bubbles: true, cancelable: true})
                                         : new DragEvent(event, {dataTransfer: data, bubbles: true, cancelable: true});
          if (document.querySelector(target).dispatchEvent(made)) throw Error(event + ' was not taken');
        }""", [event, target, field, DOT])
    expect(page.locator("#attachments img")).to_have_count(3)
    for left in (2, 1, 0):
        page.locator("#attachments button").nth(0).click()
        expect(page.locator("#attachments img")).to_have_count(left)
    page.set_input_files("#image", [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"x"}, {"name": "dot.png", "mimeType": "image/png", "buffer": base64.b64decode(DOT)}])
    expect(page.locator("#attachments img")).to_have_count(1)
    expect(page.locator("#notice")).to_contain_text("PNG")
    send(page, "What is this?")
    last = answered(page)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + DOT}}
    assert sent[0]["messages"][0]["content"] == [picture, {"type": "text", "text": "What is this?"}], sent[0]
    expect(page.locator(".message.user img")).to_have_count(1)
    assert last.locator("strong").inner_text() == "dot"
    assert not last.locator(".reasoning > div").is_visible(), "thoughts are folded"
    last.locator(".reasoning summary").click()
    assert last.locator(".reasoning > div").inner_text() == "hm"
    last.locator(".calls summary").click()
    assert "<img src=x>" in last.locator(".calls pre").inner_text() and last.locator(".calls img").count() == 0
    # Again and Edit keep the picture; so does leaving the page.
    last.get_by_role("button", name="Again").click()
    answered(page)
    page.locator(".message.user").get_by_role("button", name="Edit").click()
    expect(page.locator(".message.user img")).to_have_count(1)
    page.locator(".message.user textarea").fill("")
    page.locator(".message.user textarea").press("Enter")
    answered(page)
    assert [m["messages"][0]["content"] for m in sent[1:]] == [sent[0]["messages"][0]["content"], [picture]], sent
    page.reload()
    expect(page.locator(".message.user img")).to_have_count(1)


def check_small(p):
    page = p.page
    page.goto("/")
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.evaluate(wide)
    expect(page.locator("#chats")).to_be_hidden()
    page.locator("#toggle-chats").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#new-chat")).to_be_visible()
    page.locator("#toggle-chats").press("Enter")
    setting(page, max_tokens=3000)
    page.route("**/v1/chat/completions", write_on)
    page.click("#toggle-memory")
    send(page, "Hello")
    expect(page.locator("#mem-page")).to_be_visible()
    page.keyboard.press("Escape")
    answered(page)
    assert page.evaluate(wide)
    expect(page.locator("#input")).to_be_in_viewport()


def check_key(p):
    page = p.page
    page.goto("/")
    expect(page.locator("#key-dialog")).to_be_visible()
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    expect(page.locator("#key-wrong")).to_be_visible()
    page.fill("#key", "s3cret")
    page.press("#key", "Enter")
    expect(page.locator("#model")).to_contain_text("tokens")
    setting(page, max_tokens=8)
    send(page, "Hello")
    answered(page)
    assert "s3cret" not in page.evaluate("JSON.stringify(localStorage)"), "the key is not kept for good"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("palimpsest")
    parser.add_argument("model")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--screenshots", help="folder for two pictures of the memory view")
    options = parser.parse_args()
    if not options.chromium:
        print("SKIPPED: no Chromium (apt-get install chromium)")
        return 77
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])

        def run(check, address, *arguments, **context):
            start = time.monotonic()
            page = Page(browser, address, **context)
            try:
                check(page, *arguments)
            except Exception:
                print(f"{check.__name__} failed; problems so far: {page.problems}", file=sys.stderr)
                raise
            page.close()
            print(f"{check.__name__}: passed in {time.monotonic() - start:.1f} s", flush=True)

        with serving(options.palimpsest, options.model) as address:
            run(check_markdown, address)
            run(check_chat, address)
            run(check_images, address)
            for scheme in ("light", "dark"):
                run(check_memory, address, options.screenshots, scheme, color_scheme=scheme, viewport={"width": 1280, "height": 860})
            run(check_small, address, viewport={"width": 390, "height": 780})
        with serving(options.palimpsest, options.model, "--api-key", "s3cret") as address:
            run(check_key, address)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
