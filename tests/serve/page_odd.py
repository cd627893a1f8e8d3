#!/usr/bin/env python3
"""page_odd.py - the web page where something is odd: addresses, words that were searched for, copies of conversations,
deleted data, forbidden storage, other tabs, clocks, an address without TLS, conversations of elsewhere, names of any shape.

usage: page_odd.py INGLE [PART...]

A part is a function below.  Exit 77 (skipped) without chromium and chromedriver.
"""
import json, sys

import browser
import client
from page_long import FAKE, HOLD, LONG, LONGEST, main

PICK = """const f = new File([arguments[0]], 'x.json'), dt = new DataTransfer(); dt.items.add(f); $('status').textContent = '';
$('pick-import').files = dt.files; $('pick-import').onchange()"""


def cdp(p, cmd, **params):
    return p.b.call("POST", p.b.session + "/goog/cdp/execute", {"cmd": cmd, "params": params})


def first_question(p, text):
    p.wait("return document.querySelector('.message.user .text')?.innerText === arguments[0]", text)


class Tab:
    """Another tab of the same browser, for a while."""

    def __init__(self, p):
        self.p, self.first = p, p.b.call("GET", p.b.session + "/window")

    def show(self, handle):
        self.p.b.call("POST", self.p.b.session + "/window", {"handle": handle})

    def __enter__(self):
        self.second = self.p.b.call("POST", self.p.b.session + "/window/new", {"type": "tab"})["handle"]
        self.show(self.second)
        self.p.load()
        return self

    def __exit__(self, *_):
        self.show(self.second)
        self.p.b.call("DELETE", self.p.b.session + "/window")
        self.show(self.first)


def addresses(p):
    """A conversation has an address: a reload and the way back lead to it; what was being written is there, too."""
    p.setting("max_tokens", "4", "all")
    for text in "One", "Two", "Three":
        p.b.click("#new")
        p.ask(text)
    ids = p.run("return [...document.querySelectorAll('#list .pick')].map(b => b.dataset.id)")
    p.b.click("#list li:nth-child(3) .pick")
    first_question(p, "One")
    assert p.run("return location.hash") == "#" + ids[2]
    p.b.type("#input", "half a question")
    p.b.call("POST", p.b.session + "/refresh", {})
    p.wait("return window.ingle?.ready")
    first_question(p, "One")
    assert p.run("return $('input').value") == "half a question"
    p.b.type("#input", "\n")  # it is sent, and kept no longer
    p.wait("return document.querySelectorAll('.message').length === 4")
    p.wait_done()
    p.b.call("POST", p.b.session + "/refresh", {})
    p.wait("return window.ingle?.ready")
    assert p.run("return $('input').value") == ""
    p.b.call("POST", p.b.session + "/back", {})
    first_question(p, "Three")
    p.b.call("POST", p.b.session + "/forward", {})
    first_question(p, "One")
    p.run("location.hash = '#nothing'")
    p.wait("return $('status').innerText.includes('does not have the conversation of this address')")
    assert p.run("return location.hash") == "#" + ids[2], "the newest conversation"


def cleared(p):
    """The browser deletes what the page keeps while it is open: the next message keeps all of its conversation."""
    p.ask("Before")
    cdp(p, "Storage.clearDataForOrigin", origin=p.url, storageTypes="all")
    p.wait("return $('status').innerText.includes('has deleted what this page kept')")
    p.ask("After")
    p.wait("return $('status').innerText === 'The answer is complete.'")
    p.load()
    p.wait("return document.querySelectorAll('.message').length === 4")
    assert p.text(".message.user .text") == ["Before", "After"]


def deleted(p):
    """A conversation is deleted in another tab in mid-answer: it ends here, and comes back with what was written."""
    p.setting("extra", LONG)
    p.setting("max_tokens", "3000")
    p.run(HOLD)
    p.b.type("#input", "A long story\n")
    p.wait("return document.querySelector('.message:last-child .text')?.innerText.length > 5")
    with Tab(p) as t:
        p.wait("return document.querySelectorAll('#list .pick').length === 1")
        p.run("document.querySelector('#list li button:last-child').click(); $('chat-delete').click()")
        p.wait("return !document.querySelectorAll('#list .pick').length && !$('undo').hidden")
        t.show(t.first)
        p.wait("return !document.querySelectorAll('#list .pick').length && !document.querySelector('.message') && $('stop').hidden")
        t.show(t.second)
        p.run("$('undo').click()")
        p.wait("return document.querySelectorAll('.message').length === 2")
        assert "stopped" in p.wait_done(), p.stats()
        t.show(t.first)
        p.wait("return document.querySelectorAll('#list .pick').length === 1")
        p.run("document.querySelector('#list .pick').click()")
        p.wait("return document.querySelectorAll('.message').length === 2")
        assert "stopped" in p.wait_done(), p.stats()


def theme_of_tabs(p):
    """A setting that is taken back is taken back in other tabs, too."""
    while p.text("#theme") != ["Dark"]:
        p.b.click("#theme")
    with Tab(p) as t:
        assert p.text("#theme") == ["Dark"]
        p.b.click("#theme")
        assert p.text("#theme") == ["System"]
        t.show(t.first)
        p.wait("return $('theme').textContent === 'System'")


def clocks(p):
    """The clock is set back, far forward, and is no number: conversations keep their order, answers their figures."""
    for i, now in enumerate(("0", "8640000000000000", "NaN", "-1e12")):
        cdp(p, "Page.addScriptToEvaluateOnNewDocument", source=f"Date.now = () => {now}; Date.prototype.getTime = () => {now}; Date.prototype.valueOf = () => {now}")
        p.load()
        p.setting("max_tokens", "4", "all")
        p.b.click("#new")
        assert "tokens/s" in p.ask(f"Question {i}"), p.stats()
    p.load()
    assert p.text("#list .pick") == [f"Question {i}" for i in (3, 2, 1, 0)], p.text("#list .pick")


def forbidden(p):
    """A browser that allows no storage at all, as with blocked cookies: the page says so, and works."""
    cdp(p, "Page.addScriptToEvaluateOnNewDocument", source="""for (const name of ['localStorage', 'sessionStorage', 'indexedDB', 'caches'])
        Object.defineProperty(window, name, {get() { throw new DOMException('forbidden', 'SecurityError'); }});
        window.BroadcastChannel = class { constructor() { throw new DOMException('forbidden', 'SecurityError'); } };""")
    p.load()
    assert "keeps nothing here" in p.text("#status")[0], p.text("#status")
    p.setting("max_tokens", "4")
    p.ask("Still there?")
    p.b.click("#theme")
    p.b.click("#new")
    p.ask("And here?")
    p.run("document.querySelectorAll('#list .pick')[1].click()")
    first_question(p, "Still there?")
    p.run("$('open-settings').click(); $('key').value = 'x'; $('key').oninput()")
    assert "does not keep settings" in p.text("#settings-error")[0]


def plain_address(p):
    """An address of a network without TLS: the browser gives the page no clipboard and no estimate of room."""
    with client.Server(p.ingle, "--allowed-host", "plain.example") as s, browser.Page(s) as q:
        q.url = f"http://plain.example:{s.port}"
        q.load()
        assert not q.run("return isSecureContext")
        q.setting("max_tokens", "4")
        q.ask("Hello")
        q.b.click("#open-settings")
        q.wait("return $('room').innerText.includes('in this browser only')")
        q.run("$('settings').close()")
        q.load()
        q.wait("return document.querySelectorAll('.message').length === 2")
        assert not q.b.complaints()


HITS = """const m = [], body = 'Some **bold** text.\\n\\n- one\\n- two\\n\\n'.repeat(3);
for (let i = 0; i < 1000; i++) m.push({id: 'm' + i, parent: i ? 'm' + (i - 1) : null, role: i % 2 ? 'assistant' : 'user',
    content: body + (i === 101 ? 'Here is the **needle** in ' + 'hay '.repeat(2000) : i === 201 ? body.repeat(500) + 'the second\\n\\npin' : i)});
m.push({id: 'other', parent: 'm20', role: 'assistant', content: 'on another branch: a cushion'});
const f = new File([JSON.stringify({chats: [{id: 'c', title: 'Long', leaf: 'm999', messages: m}]})], 'x.json'), dt = new DataTransfer();
dt.items.add(f);
$('pick-import').files = dt.files;
$('pick-import').onchange()"""
MARKED = """const r = [...(CSS.highlights.get('found') ?? [])][0], b = r?.getBoundingClientRect(), l = $('log').getBoundingClientRect();
return b?.height && b.top >= l.top && b.bottom <= l.bottom && r.toString()"""


def hits(p):
    """A conversation that was found by a word opens at the word, wherever it stands; from there both ends can be reached."""
    with browser.Page(p.server) as q:
        q.setting("max_tokens", "4", "all")
        q.run(HITS)
        q.wait("return document.querySelectorAll('#list .pick').length === 1")
        for word, want in ("the needle", "the needle"), ("SECOND pin", None), ("second", "second"), ("text. one", None), ("cushion", "cushion"), ("long", None):
            q.b.click("#new")
            q.run("$('search').value = arguments[0]; $('search').oninput()", word)
            if want:
                q.wait("return document.querySelectorAll('#list .pick').length === 1")
                q.b.begin_tasks()
                q.run("setTimeout(() => document.querySelector('#list .pick').click())")
                q.wait(MARKED.replace("r.toString()", "r.toString().toLowerCase() === arguments[0]"), want)
                longest = q.b.tasks()[0]
                print(f"{longest:7.1f} ms: opened at '{want}'")
                assert longest < LONGEST, longest
            elif word == "long":  # by its name: at its end
                q.run("document.querySelector('#list .pick').click()")
                q.wait("return document.querySelectorAll('.message').length > 10 && ingle.isIdle() && $('log').scrollHeight - $('log').scrollTop - $('log').clientHeight < 80")
            else:
                q.wait("return $('list').innerText.includes('Nothing found')")
        q.run("$('search').value = 'needle'; $('search').oninput()")
        q.b.click("#new")
        q.wait("return document.querySelectorAll('#list .pick').length === 1")
        q.run("document.querySelector('#list .pick').click()")
        q.wait(MARKED)
        ends = "const b = [...document.querySelectorAll('#messages .earlier')].map(b => b.textContent);"
        there = q.run(ends + "return b")
        assert len(there) == 2 and "earlier" in there[0] and "later" in there[1], there
        q.run("document.querySelectorAll('#messages .earlier')[1].click()")
        q.wait(ends + "return b.length === 2 && b[1] !== arguments[0] && document.querySelectorAll('.message').length === 360", there[1])
        q.b.type("#input", "And now?\n")  # what is new is at the end (here an error: so long a conversation does not fit)
        q.wait("return document.querySelector('.message:last-child .error')?.innerText.includes('context')")
        q.wait("return ingle.isIdle() && document.querySelectorAll('.message').length === 60")
        assert len(q.run(ends + "return b")) == 1
    p.run("ingle.add({role: 'user', parent: null, content: 'one'}); ingle.show()")  # not found by search: no mark
    assert not p.run("return CSS.highlights.get('found')?.size")


def forks(p):
    """A conversation goes on as another one, from any message; keys of the list; what Enter does; questions as Markdown."""
    p.setting("max_tokens", "4", "all")
    p.setting("system", "Be brief.")
    p.ask("One")
    p.ask("Two **bold**")
    p.run("document.querySelectorAll('.message')[1].querySelectorAll('.acts .plain').forEach(b => { if (b.textContent === 'Fork') b.click(); })")
    p.wait("return document.querySelectorAll('#list .pick').length === 2 && document.querySelectorAll('.message').length === 2")
    assert p.text("#list .pick") == ["One (copy)", "One"] and p.text(".message.user .text") == ["One"], p.text("#list .pick")
    assert p.run("return ingle.chat.settings.system") == "Be brief."
    p.ask("Three")
    p.load()
    p.wait("return document.querySelectorAll('.message').length === 4")
    assert p.text(".message.user .text") == ["One", "Three"]
    p.run("document.querySelectorAll('#list .pick')[1].click()")
    p.wait("return document.querySelectorAll('.message').length === 4")
    assert p.text(".message.user .text") == ["One", "Two **bold**"]
    p.b.click("#open-settings")
    p.run("$('markdown').click(); $('enterLine').click(); $('settings').close()")
    p.wait("return document.querySelectorAll('.message.user .text')[1].innerText === 'Two bold'")
    p.b.type("#input", "a line\nand more")
    assert p.run("return $('input').value") == "a line\nand more" and len(p.text(".message")) == 4
    p.b.type("#input", "\ue009\ue007")  # Ctrl, Enter
    p.wait("return document.querySelectorAll('.message').length === 6")
    p.wait_done()
    press = "document.dispatchEvent(new KeyboardEvent('keydown', {code: arguments[0], ctrlKey: true, shiftKey: arguments[1], cancelable: true}));"
    seen = "return [$('nav'), $('open-list')].map(e => e.checkVisibility({visibilityProperty: true}))"
    assert p.run(seen) == [True, False]
    p.run(press, "KeyB", False)
    assert p.run(seen) == [False, True]
    p.load()
    assert p.run(seen) == [False, True]
    p.b.click("#open-list")
    assert p.run(seen) == [True, False] and p.run("return document.activeElement.id") == "new"
    p.b.click("#hide-list")
    p.run(press, "KeyK", False)
    assert p.run(seen) == [True, False] and p.run("return document.activeElement.id") == "search"
    p.run(press + "$('chat-name').value = 'Another name'; $('chat-box').close()", "KeyE", True)
    p.wait("return $('title').innerText === 'Another name'")
    p.run(press, "KeyD", True)
    p.wait("return document.querySelectorAll('#list .pick').length === 1 && !$('undo').hidden")


def waiting(p):
    """A question that is sent while an answer is written waits for its end; when the answer is stopped it is in the field again."""
    p.setting("extra", LONG)
    p.setting("max_tokens", "400")
    begin = lambda n: p.wait("return !$('stop').hidden && document.querySelectorAll('.message').length === arguments[0]", n)
    p.run(HOLD)
    p.b.type("#input", "One\n")
    begin(2)
    assert p.run("return $('send').hidden")
    p.b.type("#input", "Two")
    assert not p.run("return $('send').hidden")
    p.b.click("#send")
    p.b.type("#input", "Three\n")
    assert "when the answer is complete" in p.text("#status")[0] and len(p.text(".message")) == 2
    p.b.click("#undo")
    assert p.run("return $('input').value") == "Two\n\nThree"
    p.b.type("#input", "\n")
    p.b.click("#new")  # it is asked there, whatever is looked at
    p.b.type("#input", "Elsewhere")
    p.run("window.released = true")
    p.wait("return document.querySelectorAll('#list li.busy').length === 0 && !document.querySelector('.message')")
    p.b.click("#list .pick")
    p.wait("return document.querySelectorAll('.message').length === 4")
    p.wait_done()
    assert p.text(".message.user .text") == ["One", "Two\n\nThree"] and p.run("return $('input').value") == "Elsewhere"
    p.run("window.released = false; $('input').value = ''")
    p.b.type("#input", "Four\n")
    begin(6)
    p.b.type("#input", "Five\n")
    p.b.type("#input", "\ue00c")  # Esc
    p.wait_done()
    p.wait("return $('input').value === 'Five'")
    assert len(p.text(".message")) == 6


LLAMA = [{"conv": {"id": "u1", "name": "Of llama-server", "lastModified": 1, "currNode": "d"}, "messages": [
    {"id": i, "convId": "u1", "type": "text", "timestamp": n, "role": role, "content": content, "parent": parent, "children": [], **more}
    for n, (i, role, content, parent, more) in enumerate((
        ("r", "system", "", None, {"type": "root"}), ("s", "system", "Be short.", "r", {}),
        ("a", "user", "Hi", "s", {"extra": [{"type": "TEXT", "name": "a.txt", "content": "abc"},
                                            {"type": "PDF", "name": "b.pdf", "content": "def", "base64Data": "eA=="}, 5]}),
        ("b", "assistant", "Hello", "a", {"thinking": "Hm", "model": "some.gguf"}),
        ("c", "assistant", "", "a", {"toolCalls": '[{"id": "k", "type": "function", "function": {"name": "f", "arguments": "{}"}}]'}),
        ("d", "tool", "42", "c", {"toolCallId": "k"})))]}]


def foreign(p):
    """What llama-server's page exported: one conversation or many, with versions, files, calls and system prompt."""
    for data, n in ((LLAMA, 1), (LLAMA[0], 2)):
        p.run(PICK, json.dumps(data))
        p.wait("return document.querySelectorAll('#list .pick').length === arguments[0]", n)
    for bad in ([], [1], [{"conv": None, "messages": []}], {"conv": {}}):
        p.run("$('open-settings').click();" + PICK, json.dumps(bad))
        p.wait("return $('settings-error').innerText.includes('not imported')")
        p.run("$('settings').close()")
    p.run(PICK, json.dumps([{"conv": {"id": 5}, "messages": [None, {"role": "user"}, {"id": 3, "role": "user", "content": "x"}]}]))
    p.wait("return document.querySelectorAll('#list .pick').length === 3")
    p.run("[...document.querySelectorAll('#list .pick')].find(b => b.innerText === 'Of llama-server').click()")
    p.wait("return document.querySelectorAll('.message').length === 3")
    assert p.text(".call > .who") == ["Call of f"] and p.text(".versions span") == ["2/2"]
    assert p.text(".file summary") == ["a.txt (3 bytes)", "b.pdf (3 bytes)"] and p.run("return ingle.chat.settings") == {"system": "Be short."}


NAMES = {"marks": "a" + "\u0301\u0489" * 3000, "right to left": "\u202e\u05e9\u05dc\u05d5\u05dd " * 900, "flags": "\U0001F1E9\U0001F1EA\u200d" * 900,
         "one word": "w" * 5000, "lines": "a\n" * 2000, "markup": "<img src=x onerror=window.bad=1>" * 30}


MADE = """const text = arguments[0], name = text.slice(0, 400), many = n => [...Array(n).keys()], chats = many(20).map(i => ({
    id: 'c' + i, title: text, model: text, leaf: 'b', messages: [
    {id: 'a', parent: null, role: 'user', content: 'x', files: many(80).map(() => ({name, text: 'y'}))},
    {id: 'b', parent: 'a', role: 'assistant', content: 'z', model: text, error: text, calls: many(i === 16 ? 2000 : 1).map(() => ({id: '1', name, arguments: text.slice(0, 1500)}))}]}));
window.json = JSON.stringify({chats})"""


def names(p):
    """Names of conversations, files, models and tools, and texts of errors: of any shape, in any number."""
    for what, text in NAMES.items():
        p.run(MADE, text)
        p.b.begin_tasks()
        p.run(PICK.replace("arguments[0]", "json"))
        p.wait("return $('status').innerText.includes('imported')")
        p.run("document.querySelectorAll('#list .pick')[3].click()")
        p.wait("return document.querySelectorAll('.message').length === 2 && ingle.isIdle() && document.querySelector('.calls > .main')")
        p.run("$('search').value = 'xyz'; $('search').oninput(); $('search').value = ''; $('search').oninput()")
        longest = p.b.tasks()[0]
        print(f"{longest:7.1f} ms: {what}", flush=True)
        assert longest < LONGEST, (what, longest)
        assert p.run("""const d = document.documentElement, l = $('log');
            return [d.scrollWidth <= innerWidth, d.scrollHeight <= innerHeight, getComputedStyle(l).overflowX,
                    window.bad ?? null]""") == [True, True, 'hidden', None], what
        assert len(p.text(".call")) == 32 and "224 more calls" in p.text(".calls > .note")[0] and len(p.text(".message .file")) == 50


def calls(p):
    """Calls of tools that are written for long, and many of them: each piece shows only what has grown."""
    event = lambda d, f=None: "data: " + json.dumps({"choices": [{"index": 0, "delta": d, "finish_reason": f}]}) + "\n\n"
    pieces = []
    for i in range(60):
        pieces.append(event({"tool_calls": [{"index": i, "id": f"c{i}", "function": {"name": f"tool{i}", "arguments": ""}}]}))
        pieces += [event({"tool_calls": [{"index": i, "function": {"arguments": "[\"" + "w" * 1500 + "\","}}]})] * 6
    pieces += [event({"tool_calls": [{"index": 10**9, "function": {"name": "far", "arguments": ""}}]}), event({}, "tool_calls")]
    p.run(FAKE, pieces, 5)
    p.b.begin_tasks()
    p.b.type("#input", "x\n")
    p.wait("return document.querySelector('.calls > .main')")
    longest = p.b.tasks()[0]
    print(f"{longest:7.1f} ms: 60 calls, letter by letter", flush=True)
    assert longest < LONGEST and len(p.text(".call")) == 32 and p.run("return ingle.chat.nodes.get(ingle.chat.leaf).calls.length") == 60


def gone(p):
    """A conversation whose model the router does not have any more says which one answers."""
    import router
    router.INGLE = p.ingle
    with router.Router(router.PRESETS) as s, browser.Page(s) as q:
        q.wait("return !$('model').hidden")
        q.run(PICK, json.dumps({"chats": [{"id": "a", "title": "Old", "model": "was-here", "messages": [{"id": "1", "role": "user", "content": "x"}]}]}))
        q.wait("return document.querySelectorAll('#list .pick').length === 1")
        q.b.click("#list .pick")
        q.wait("return $('machine').innerText.includes('was-here, which this conversation used, is not served here')")


PARTS = [addresses, hits, forks, waiting, cleared, deleted, theme_of_tabs, clocks, forbidden, plain_address, foreign, names, calls, gone]

if __name__ == "__main__":
    if not browser.available():
        print("skipped: there is no chromium with chromedriver here")
        sys.exit(77)
    main(sys.argv[1], sys.argv[2:], None, None, PARTS)
    print("ok")
