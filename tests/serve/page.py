#!/usr/bin/env python3
"""page.py - the web page in a headless Chromium: a conversation with the built-in model.

usage: page.py INGLE [FOLDER for screenshots]

Exit 77 (skipped) where there is no chromium and chromedriver.
"""
import sys

import browser
import client

SEND = "#send"
ANSWERED = """const a = document.querySelectorAll('.message.assistant'), last = a[a.length - 1];
return a.length === arguments[0] && !document.querySelector('#log').hasAttribute('aria-busy')
       && (last.querySelector('.stats').textContent || last.querySelector('.error').textContent)"""
BUSY = "return document.querySelector('#log').hasAttribute('aria-busy')"


def ask(b, text, n_answers):
    b.type("#input", text + "\n")
    return b.wait(ANSWERED, n_answers)


def setting(b, key, value):
    b.click("#open-settings")
    b.run("""const f = document.querySelector(`[data-key=${arguments[0]}]`); f.value = arguments[1];
             f.dispatchEvent(new Event('input', {bubbles: true}))""", key, value)
    b.click("#settings .main")


def conversation(b):
    setting(b, "max_tokens", "48")
    setting(b, "seed", "1")
    stats = ask(b, "Once upon a time", 1)
    assert "tokens/s" in stats and "from the cache" in stats, stats
    first = b.text(".message.assistant .text")[0]
    assert first.strip(), "the first answer is empty"
    stats = ask(b, "Go on", 2)
    cached = int(stats.split(", ")[1].split()[0])
    assert cached > 0, f"the second turn reused nothing: {stats}"
    b.click(".message.assistant:last-child .acts button:nth-child(2)")  # Regenerate
    b.wait(ANSWERED, 2)
    b.click(".message.user .acts button:nth-child(2)")  # Edit the first message
    b.run("const t = document.querySelector('.message textarea'); t.value = 'A dog'; t.focus()")
    b.click(".message .acts .main")
    b.wait(ANSWERED, 1)
    assert b.text(".message.user .text") == ["A dog"], b.text(".message.user .text")


def stopping(b):
    b.click("#new")
    setting(b, "max_tokens", "")
    b.type("#input", "Tell a very long story\n")
    b.wait("return document.querySelector('.message.assistant .text').innerText.length > 0 || !(" +
           BUSY.replace("return ", "") + ")")
    b.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    b.wait("return !document.querySelector('#log').hasAttribute('aria-busy')", seconds=10)
    setting(b, "max_tokens", "16")


def keeping(b, url):
    titles = b.text("#list .pick")
    assert titles == ["Tell a very long story", "Once upon a time"], titles
    b.open(url)
    assert b.text("#list .pick") == titles, "conversations are gone after a reload"
    b.run("document.querySelectorAll('#list .pick')[1].click()")
    assert b.text(".message.user .text") == ["A dog"]


MARKDOWN = r"""# Title
Some **bold**, *soft*, `code` and [a link](https://example.org) <img src=x onerror=alert(1)>

- one
  - inner
- two

| a | b |
|---|---|
| 1 | 2 |

```c
int main(void) { return 0; }
```
[bad](javascript:alert(1))"""


def rendering(b):
    b.run("""const m = {role: 'assistant', content: arguments[0], reasoning: 'I thought', stats: {}};
             chat.messages.push(m); showMessages()""", MARKDOWN)
    last = ".message.assistant:last-child "
    assert b.text(last + "h3") == ["Title"] and b.text(last + "strong") == ["bold"]
    assert b.text(last + "pre code") == ["int main(void) { return 0; }"]
    assert b.text(last + "li li") == ["inner"] and b.text(last + "td") == ["1", "2"]
    assert b.run("return document.querySelectorAll('.message img').length") == 0
    hrefs = b.run("return [...document.querySelectorAll('.message a')].map(a => a.href)")
    assert hrefs == ["https://example.org/"], hrefs
    assert b.run("return !document.querySelector(arguments[0]).open", last + "details"), "a thought is open"


def reading(b):
    """What a screen reader and a keyboard need."""
    nameless = b.run("""return [...document.querySelectorAll('button, textarea, input, select')].filter(e =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)""")
    assert not nameless, nameless
    wide = "return document.documentElement.scrollWidth <= window.innerWidth"
    b.size(390, 780)
    assert b.run(wide), "the page is wider than a phone"
    b.click("#open-list")
    assert b.run("return document.activeElement.id") == "new"
    b.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")


def test(ingle, folder):
    with client.Server(ingle) as s:
        url = f"http://127.0.0.1:{s.port}/"
        b = browser.Browser()
        shot = (lambda name: b.shot(f"{folder}/{name}.png")) if folder else (lambda name: None)
        try:
            b.open(url)
            shot("1-empty")
            conversation(b)
            shot("2-conversation")
            stopping(b)
            keeping(b, url)
            rendering(b)
            shot("3-markdown")
            b.click("#theme")
            shot("4-other-theme")
            b.click("#open-settings")
            shot("5-settings")
            b.click("#settings .main")
            reading(b)
            shot("6-phone")
            complaints = b.complaints()
            assert not complaints, complaints
        finally:
            b.close()


if __name__ == "__main__":
    if not browser.available():
        print("skipped: there is no chromium with chromedriver here")
        sys.exit(77)
    test(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    print("ok")
