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


def usual(b):
    """An empty field shows what the server takes for it."""
    b.click("#open-settings")
    b.wait("return document.querySelector('[data-key=top_k]').placeholder === '64'")
    shown = b.run("return [...document.querySelectorAll('#settings input')].map(e => e.placeholder)")
    assert shown == ["0.5", "0.95", "64", "0", "1", "until it ends", "another one each time", ""], shown
    b.click("#settings .main")


def conversation(b):
    setting(b, "max_tokens", "48")
    setting(b, "seed", "1")
    stats = ask(b, "Once upon a time", 1)
    assert "tokens/s" in stats and "from the cache" in stats, stats
    first = b.text(".message.assistant .text")[0]
    assert first.strip(), "the first answer is empty"
    b.wait("return $('machine').textContent.includes(' \u00b7 drafts from the text')")
    stats = ask(b, "Go on", 2)
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


HARD = r"""1. Do this:
   ```sh
   # no heading

   make
   ```
2. Then

   - \*that\*
 # a heading behind a blank
one
two
---
[![a](http://b.example/)](http://c.example/) http://d.example/**x**

| a | b |
|:--|--:|
| <b> | 1<br>2 |

שלום
~~~
open"""
GROWN = """const grown = el('div'), whole = el('div'), ends = [];
for (let n = 1; n <= arguments[0].length; n++) render(grown, ends, arguments[0].slice(0, n));
render(whole, [], arguments[0]);
return [grown.innerHTML, whole.innerHTML]"""


def hardship(b):
    """What models write when nobody looks: it ends, and it is the same however it arrived."""
    b.call("POST", b.session + "/timeouts", {"script": 20000})
    grown, whole = b.run(GROWN, HARD)
    assert grown == whole, (grown, whole)
    b.run("chat.messages.push({role: 'assistant', content: arguments[0], stats: {}}); showMessages()", HARD)
    last = ".message.assistant:last-child "
    assert b.text(last + "li pre code") == ["# no heading\n\nmake"], b.text(last + "li pre code")
    assert b.text(last + "ol > li > ul > li") == ["*that*"] and len(b.text(last + "ol")) == 1
    assert b.text(last + "h3") == ["a heading behind a blank"] and len(b.text(last + "hr")) == 1
    said = b.text(last + ".text p")[0], b.text(last + "td")
    assert said == ("one\ntwo", ["<b>", "1\n2"]), said
    assert b.run("return document.querySelectorAll(arguments[0]).length", last + "a a") == 0
    assert b.text(last + "> .text > .code pre") == ["open"]
    assert b.run("return getComputedStyle([...document.querySelectorAll(arguments[0])].at(-1)).direction",
                 last + ".text p") == "rtl"
    for text in (">" * 30000, "*" * 30000, "[" * 30000, "`" * 30000, "- " * 9000, "|" * 9000 + "\n" + "--|" * 9000,
                 "\n".join(" " * 2 * n + "- x" for n in range(200))):
        assert b.run("const box = el('div'); render(box, [], arguments[0]); return box.children.length", text) > 0


def tabs(b, url):
    """Two tabs keep what either of them does; an answer goes on behind another conversation, and over a reload
    what was written stays."""
    setting(b, "max_tokens", "")
    b.click("#new")
    b.type("#input", "In the first tab, a very long story\n")
    first = b.call("GET", b.session + "/window")
    second = b.call("POST", b.session + "/window/new", {"type": "tab"})["handle"]
    b.call("POST", b.session + "/window", {"handle": second})
    b.open(url)
    b.click("#new")
    b.type("#input", "In the second\n")
    b.wait("return document.querySelector('.message.assistant .text').innerText.length > 0")
    b.open(url)
    kept = b.text(".message.assistant .text") + b.text(".message.assistant .stats")
    assert kept[0], "what was written before a reload is gone"
    b.run("window.confirm = () => true; document.querySelectorAll('#list .plain')[2].click()")
    titles = ["In the second", "In the first tab, a very long story"]
    assert b.text("#list .pick")[:2] == titles, b.text("#list .pick")
    n = len(b.text("#list .pick"))
    b.call("POST", b.session + "/window", {"handle": first})
    b.wait("return document.querySelectorAll('#list .pick').length === arguments[0]", n)
    assert b.text("#list .pick")[:2] == titles, b.text("#list .pick")
    b.click("#new")
    b.type("#input", "Another long story\n")
    b.run("document.querySelectorAll('#list .pick')[1].click()")
    assert b.run("return $('stop').hidden && !$('send').hidden"), "another conversation's answer is stopped here"
    b.run("document.querySelectorAll('#list .pick')[0].click()")
    b.wait(ANSWERED, 1)
    assert "stopped" not in b.text(".message.assistant .stats")[0], b.text(".message.assistant .stats")
    setting(b, "max_tokens", "16")


def full(b):
    """A browser without room says so, and the conversation goes on."""
    b.run("""for (let n = 1 << 20; n; n >>= 1)
                 try { for (let i = 0; ; i++) localStorage.setItem(`full${n}.${i}`, 'x'.repeat(n)); } catch { /* full */ }""")
    b.click("#new")
    ask(b, "Is there room?", 1)
    assert "no room" in b.text("#status")[0], b.text("#status")
    b.run("for (const k of Object.keys(localStorage)) if (k.startsWith('full')) localStorage.removeItem(k)")
    ask(b, "And now?", 2)
    assert "complete" in b.text("#status")[0], b.text("#status")


def foreign(b, url):
    """What is no conversation is not shown, and what is one is text."""
    b.run("""const put = (k, v) => localStorage.setItem('ingle.' + k, v);
             put('chat.1', '{"id": 5, "messages": "no"}'); put('chat.2', '{{{'); put('chat.3', 'null');
             put('chat.4', '{"id": "4", "messages": [{"role": "assistant"}, null]}');
             put('chat.zz', '{"id": "zz", "title": "<b>", "messages": [{"role": "user", "content": "<i>x</i>"}]}')""")
    n = len(b.text("#list .pick"))
    b.open(url)
    assert len(b.text("#list .pick")) == n + 1 and b.text("#list .pick")[0] == "<b>", b.text("#list .pick")
    assert b.text(".message .text") == ["<i>x</i>"], b.text(".message .text")


def away(b, s, ingle):
    """The server goes and comes back."""
    s.close()
    b.type("#input", "Are you there?\n")
    b.wait("return document.querySelector('.message:last-child .error').textContent.includes('cannot be reached')")
    b.wait("return $('machine').textContent.includes('cannot be reached')")
    with client.Server(ingle, "--port", str(s.port)):
        b.wait("return $('machine').textContent.includes('nano')")
        b.run("document.querySelector('.message:last-child .acts button:nth-child(2)').click()")  # Regenerate
        b.wait("return document.querySelector('.message:last-child .stats').textContent")


def reading(b):
    """What a screen reader and a keyboard need."""
    nameless = b.run("""return [...document.querySelectorAll('button, textarea, input, select')].filter(e =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)""")
    assert not nameless, nameless
    wide = "return document.documentElement.scrollWidth <= window.innerWidth"
    b.size(360, 740)
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
            usual(b)
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
            b.size(1200, 800)
            hardship(b)
            shot("7-hardship")
            tabs(b, url)
            full(b)
            foreign(b, url)
            away(b, s, ingle)
        finally:
            b.close()


if __name__ == "__main__":
    if not browser.available():
        print("skipped: there is no chromium with chromedriver here")
        sys.exit(77)
    test(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    print("ok")
