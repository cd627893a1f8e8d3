#!/usr/bin/env python3
"""page_hostile.py - the processor time of the web page's longest task for each hostile answer of page_shapes.py.

usage: page_hostile.py INGLE [--state FILE] [--seconds N] [--how WAY] [--list] [NAME...]

Each shape is shown at once, scrolled through, and arrives as a stream; some arrive one letter at a time, as a question, as a
thought, or as a result of a tool.  Asked are 50 ms; nothing runs, no address is asked for.

--state: the results of each shape are kept in this file, so that a run that ends (by --seconds, or by a signal) goes on
there.  Results of another build of the page are measured again.  The table comes at the end.
Exit 1: a task above LONGEST, or more than a few above 50 ms.  2: time is up before the end.  77: no browser.
"""
import argparse, hashlib, json, os, pathlib, sys, time

import browser
import client
from page_long import STREAMED
from page_shapes import HOSTILE

LONGEST = 100  # ms of processor time of one task: asked are 50 on a quiet machine; a page that freezes needs seconds
SOURCES = pathlib.Path(__file__).resolve().parents[2] / "src/server/page"
BY_LETTER = 3000  # letters of a shape that come one by one

SHOWN = """const log = document.getElementById('log');
setTimeout(async () => {
    ingle.show();
    do await new Promise(r => setTimeout(r, 50)); while (!ingle.isIdle());
    for (const part of [0, 0.5, 1]) { log.scrollTop = part * log.scrollHeight; await new Promise(r => setTimeout(r, 100)); }
    window.finished = true;
});"""
ANSWER = """ingle.add({role: 'user', parent: null, content: 'x'});
ingle.add({role: 'assistant', parent: ingle.chat.leaf, content: text});""" + SHOWN
QUESTION = "ingle.add({role: 'user', parent: null, content: text});" + SHOWN
THOUGHT = """ingle.add({role: 'user', parent: null, content: 'x'});
ingle.add({role: 'assistant', parent: ingle.chat.leaf, content: '', reasoning: text});""" + SHOWN
RESULT = """ingle.add({role: 'user', parent: null, content: 'x'});
const name = text.slice(0, 20000);
ingle.add({role: 'assistant', parent: ingle.chat.leaf, content: '', calls: [{id: 'c', name, arguments: text}]});
ingle.add({role: 'tool', parent: ingle.chat.leaf, content: text, call: {id: 'c', name}});""" + SHOWN
LETTERS = STREAMED.replace("PIECES", str(BY_LETTER)).replace("setTimeout(r, 10)", "setTimeout(r, 4)")
ALWAYS = {"at once": ANSWER, "streamed": STREAMED.replace("PIECES", "100")}
ELSEWHERE = {"question": QUESTION, "thought": THOUGHT, "result": RESULT}
EVERYWHERE = ("one word", "right to left", "100,000 marks", "markup that runs", "answer", "one line", "blank lines", "all letters")
LETTER_BY_LETTER = ("answer", "mixed", "10,000 formulas", "code, swift", "backticks", "emphasis", "links in links", "table", "markup that runs",
                    "right to left", "notes", "one formula", "fences", "list, wide and deep")
BROWSER = 12    # measurements with one browser
PATIENCE = 300  # seconds for one


def runs():
    for name in HOSTILE:
        for how, script in ALWAYS.items():
            yield name, how, script
        if name in LETTER_BY_LETTER:
            yield name, "by letter", LETTERS
        if name in EVERYWHERE:
            for how, script in ELSEWHERE.items():
                yield name, how, script


def build():
    """Of what the results are."""
    h = hashlib.sha256()
    for path in sorted(SOURCES.glob("*")):
        h.update(path.read_bytes())
    return h.hexdigest()[:16]


def measure(q, name, how, script):
    """[the longest task in ms, tasks above 50 ms, seconds in all]"""
    text = HOSTILE[name][:BY_LETTER] if how == "by letter" else HOSTILE[name]
    q.run("document.getElementById('new').click()")
    q.run("window.text = JSON.parse(arguments[0]); window.finished = false; window.bad = undefined", json.dumps(text))
    q.b.begin_tasks()
    q.run(script)
    end = time.monotonic() + PATIENCE
    while not q.run("return window.finished && ingle.isIdle()"):
        if time.monotonic() > end:
            print(f"{name}, {how}: not shown after {PATIENCE} s", q.b.complaints())
            q.b.tasks()  # the trace ends
            return [PATIENCE * 1000, 1, PATIENCE]
        time.sleep(0.2)
    tasks = q.b.tasks()
    assert q.run("return window.bad") is None, f"{name}: markup of an answer has run"
    asked = q.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert all(a.startswith((q.url, "blob:")) for a in asked), (name, asked)
    q.run("performance.clearResourceTimings()")
    return [round(tasks[0], 1), sum(t > 50 for t in tasks), round(sum(tasks) / 1000, 1)]


def table(results):
    print(f"{'ms':>7} {'> 50 ms':>8} {'s in all':>9}  shape")
    for name, (longest, many, total) in sorted(results.items(), key=lambda r: -r[1][0]):
        print(f"{longest:7.1f} {many:8} {total:9.1f}  {name}")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("ingle")
    a.add_argument("--state")
    a.add_argument("--seconds", type=float, default=1e9)
    a.add_argument("--how", choices=(*ALWAYS, "by letter", *ELSEWHERE))
    a.add_argument("--list", action="store_true")
    a.add_argument("names", nargs="*")
    a = a.parse_intermixed_args()
    wanted = [r for r in runs() if (not a.names or r[0] in a.names) and a.how in (None, r[1])]
    if a.list:
        print("\n".join(f"{name}, {how}" for name, how, _ in wanted))
        return 0
    state = {"build": build(), "results": {}}
    if a.state and os.path.exists(a.state):
        old = json.loads(pathlib.Path(a.state).read_text())
        if old["build"] == state["build"]:
            state = old
    results = state["results"]
    left = [r for r in wanted if f"{r[0]}, {r[1]}" not in results]
    begun, q, used = time.monotonic(), None, 0
    with client.Server(a.ingle) as s:
        for name, how, script in left:
            if time.monotonic() - begun > a.seconds:
                break
            if used % BROWSER == 0:
                if q:
                    q.b.close()
                q = browser.Page(s)
            used += 1
            r = measure(q, name, how, script)
            for _ in range(2):  # a busy machine empties caches: then the least of three counts
                if 50 < r[0] < PATIENCE * 1000:
                    r = min(r, measure(q, name, how, script))
            results[f"{name}, {how}"] = r
            print(f"{r[0]:7.1f} ms, {r[2]:.1f} s in all: {name}, {how}", flush=True)
            if a.state:
                pathlib.Path(a.state + ".new").write_text(json.dumps(state, indent=0))
                os.replace(a.state + ".new", a.state)
        if q:
            q.b.close()
    mine = {f"{name}, {how}": results[f"{name}, {how}"] for name, how, _ in wanted if f"{name}, {how}" in results}
    table(mine)
    bad = {name: r for name, r in mine.items() if r[0] > LONGEST}
    many = sum(r[1] for r in mine.values())
    print(f"{len(mine)} of {len(wanted)} measured, {many} tasks above 50 ms, {len(bad)} above {LONGEST} ms")
    if bad or many > 5:
        return 1
    return 0 if len(mine) == len(wanted) else 2


if __name__ == "__main__":
    if not browser.available():
        print("skipped: there is no chromium with chromedriver here")
        sys.exit(77)
    sys.exit(main())
