#!/usr/bin/env python3
"""daemon.py - `ingle daemon` as the program that embeds it sees it.

usage: daemon.py INGLE
"""
import json, os, struct, subprocess, sys, tempfile

INGLE = sys.argv[1]
NONE = f"{__file__}/none"  # nobody can make a file below a file


class Daemon:
    def __init__(self, *options):
        self.p = subprocess.Popen([INGLE, "daemon", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        self.ready = self.event()

    def event(self):
        line = self.p.stdout.readline()
        assert line, self.p.stderr.read()
        return json.loads(line)

    def say(self, line):
        self.p.stdin.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
        self.p.stdin.flush()

    def until(self, *names, id=None):
        """Events up to the first of these names (and of this id)."""
        events = []
        while not events or events[-1]["event"] not in names or (id and events[-1].get("id") != id):
            events.append(self.event())
        return events

    def ask(self, **command):
        self.say({"id": "q", **command})
        return self.until("end", "error", "saved", "loaded", "reset", "parked", "unparked", "status", id="q")

    def end(self):
        self.p.stdin.close()
        rest = self.p.stdout.read()
        assert self.p.wait(300) == 0, self.p.stderr.read()
        return [json.loads(line) for line in rest.splitlines()]


def text(events):
    return "".join(e["text"] for e in events if e["event"] == "text")


def answers(d):
    assert d.ready["event"] == "ready" and d.ready["n_ctx"] > 0
    once = d.ask(do="generate", prompt="Once upon a time", max_tokens=20, temperature=0)
    assert once[-1]["finish"] == "length" and once[-1]["tokens"] == 20, once[-1]
    again = d.ask(do="generate", prompt="Once upon a time", max_tokens=20, temperature=0, show_tokens=True)
    assert text(again) == text(once)
    assert sum(e["event"] == "token" for e in again) == 20
    stop = text(once).split()[3]
    cut = d.ask(do="generate", prompt="Once upon a time", max_tokens=20, temperature=0, stop=[stop])
    assert cut[-1]["finish"] == "stop" and text(once).startswith(text(cut)) and stop not in text(cut)
    chat = d.ask(do="generate", messages=[{"role": "user", "content": "Hello"}], max_tokens=50, temperature=0)
    assert chat[-1]["finish"] == "stop" and text(chat), chat
    return text(once)


def sessions(d, whole):
    d.ask(do="generate", session="a", prompt="Once upon a time", max_tokens=8, temperature=0)
    parts = d.ask(do="generate", session="a", tokens=[], max_tokens=12, temperature=0)
    assert whole.endswith(text(parts)), (whole, text(parts))
    assert parts[0]["reused_tokens"] > 0, parts[0]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.kv")
        saved = d.ask(do="save", session="a", file=path)[-1]
        assert saved["event"] == "saved" and saved["tokens"] == 25, saved
        more = d.ask(do="generate", session="a", prompt=" Then", max_tokens=8, temperature=0)
        assert d.ask(do="park")[-1]["event"] == "parked"
        refused = d.ask(do="generate", prompt="x")[-1]
        assert "parked" in refused["error"], refused
        assert d.ask(do="unpark")[-1]["event"] == "unparked"
        assert d.ask(do="load", session="b", file=path)[-1]["tokens"] == 25
        same = d.ask(do="generate", session="b", prompt=" Then", max_tokens=8, temperature=0)
        assert text(same) == text(more) and same[0]["reused_tokens"] >= 24, same[0]
        with open(path, "r+b") as f:
            f.seek(os.path.getsize(path) // 2)
            f.write(b"damage")
        bad = d.ask(do="load", session="c", file=path)[-1]
        assert bad["event"] == "error" and "a.kv" in bad["error"], bad
    assert d.ask(do="reset", session="b")[-1]["event"] == "reset"
    names = [s["session"] for s in d.ask(do="status")[-1]["sessions"]]
    assert names == ["a"], names


def together(d, whole):
    for i in range(16):
        d.say({"do": "generate", "id": str(i), "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0})
    pieces = {str(i): "" for i in range(16)}
    left = 16
    while left:
        e = d.event()
        pieces[e["id"]] += e.get("text", "")
        left -= e["event"] == "end"
    assert set(pieces.values()) == {whole}, pieces


def cancelling(d):
    for _ in range(50):  # until it is not over when the command comes
        d.say({"do": "generate", "id": "long", "prompt": "Once", "max_tokens": 4000, "ignore_end": True})
        d.until("text", id="long")
        d.say({"do": "cancel", "id": "long"})
        end = d.until("end", id="long")[-1]["finish"]
        if end == "cancelled":
            return
        assert end == "length", end
        d.until("error", id="long")  # of a command for nobody
    raise AssertionError("each of 50 answers was over before it was cancelled")


def refusing(d):
    for line, word in [("{", "json"), ("[]", "object"), ('{"do": "dance"}', "dance or generate"),
                       ('{"do": "generate"}', "messages"), ('{"do": "generate", "prompt": 1}', "prompt"),
                       ('{"do": "generate", "prompt": "a", "temperature": -1}', "temperature"),
                       ('{"do": "generate", "prompt": "a", "stop": "b"}', "stop"),
                       ('{"do": "generate", "prompt": "a", "stop": ["b", null]}', "null at 1"),
                       ('{"do": "generate", "prompt": "a", "stop": [1]}', "1 at 0"),
                       ('{"do": "generate", "prompt": "a", "max_tokens": 1.5}', "whole"),
                       ('{"do": "generate", "prompt": "a", "priority": 0.5}', "whole"),
                       ('{"do": "generate", "prompt": "' + "a" * (65 << 20) + '"}', "67108864"),
                       ('{"do": "generate", "tokens": [99999999]}', "99999999"),
                       ('{"do": "generate", "tokens": [1, "a"]}', "tokens"),
                       ('{"do": "generate", "messages": [{"role": "queen"}]}', "queen"),
                       ('{"do": "generate", "prompt": "a", "session": "' + "s" * 200 + '"}', "128"),
                       ('{"do": "save", "session": "none", "file": "%s/x"}' % NONE, "empty"),
                       ('{"do": "load", "session": "none", "file": "%s/x"}' % NONE, NONE),
                       ('{"do": "generate", "prompt": "a", "top_kk": 0}', "did you mean 'top_k'"),
                       ('{"do": "generate", "prompt": "a", "ctx": 5}', "'ctx' is no member of 'generate'"),
                       ('{"do": "status", "session": "a"}', "'session' is no member of 'status'"),
                       ('{"do": "status", "id": "x\\u0000y"}', "'id' has a NUL byte"),
                       ('{"do": "generate", "prompt": "a", "session": "x\\u0000y"}', "'session' has a NUL byte"),
                       ('{"do": "generate", "prompt": "a", "session": "\\u0000"}', "'session' has a NUL byte"),
                       ('{"do": "generate", "prompt": "a", "regex": "("}', "("),
                       ('{"do": "generate", "prompt": "a", "regex": "a", "json_object": true}', "exclude"),
                       ('{"do": "generate", "prompt": "a", "json_schema": "a"}', "json_schema"),
                       ('{"do": "generate", "prompt": "a", "tool_choice": "required"}', "'tool_choice' needs 'tools'"),
                       ('{"do": "generate", "prompt": "a", "grammar": "root ::= x"}', "x"),
                       ('{"do": "cancel", "id": "nobody"}', "id")]:
        d.say(line)
        e = d.event()
        assert e["event"] == "error", (line, e)
        assert any(w in e["error"] for w in word.split(" or ")), (line, e)
    assert d.ask(do="generate", prompt="a", max_tokens=1)[-1]["event"] == "end"


def failures_leave_no_session(d):
    before = d.ask(do="status")[-1]["sessions"]
    for i in range(3):
        assert d.ask(do="generate", session=f"bad{i}", tokens=[])[-1]["event"] == "error"
        assert d.ask(do="generate", session=f"bad{i}", prompt="a", stop=["x"] * 100)[-1]["event"] == "error"
        assert d.ask(do="load", session=f"bad{i}", file=NONE)[-1]["event"] == "error"
    assert d.ask(do="status")[-1]["sessions"] == before


def shapes(d):
    """Answers that must fit, as in `ingle run`."""
    def content(**more):
        events = d.ask(do="generate", messages=[{"role": "user", "content": "x"}], max_tokens=60, temperature=0, **more)
        assert events[-1]["event"] == "end", events
        return text(events), events
    assert content(regex="ab{3}")[0] == "abbb"
    assert content(grammar='root ::= "e4" | "größe"')[0] in ("e4", "größe")
    assert json.loads(content(json_schema={"type": "object", "properties": {"a": {"const": "ü"}}, "required": ["a"],
                                           "additionalProperties": False})[0]) == {"a": "ü"}
    assert content(json_object=True)[0].lstrip()[0] == "{"
    assert content(regex="ab", ignore_end=True)[1][-1]["finish"] == "stop"
    tools = [{"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}]
    for choice in ("required", "go"):
        assert [e["name"] for e in content(tools=tools, tool_choice=choice)[1] if e["event"] == "call"] == ["go"]
    one, two = content(tools=tools, tool_choice="none")[1][0], content()[1][0]
    assert one["prompt_tokens"] == two["prompt_tokens"]


def streams(folder):
    """--stream-fd: the line protocol of dflash."""
    def prompt(name, ids):
        path = os.path.join(folder, name)
        with open(path, "wb") as f:
            f.write(struct.pack(f"<{len(ids)}i", *ids))
        return path
    def numbers(*arguments):
        return [int(n) for n in subprocess.run([INGLE, *arguments], capture_output=True, text=True).stdout.split()]
    ids = json.loads(subprocess.run([INGLE, "render", "--json", "Capital of Japan?"], capture_output=True, text=True).stdout)["ids"]
    out, into = os.pipe()
    p = subprocess.Popen([INGLE, "daemon", "--stream-fd", str(into)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, pass_fds=[into])
    os.close(into)
    assert p.stdout.readline() == "[daemon] ready\n"

    def ask(line):
        p.stdin.write(line + "\n")
        p.stdin.flush()
        tokens = []
        while not tokens or tokens[-1] != -1:
            data = os.read(out, 4)
            assert len(data) == 4, p.stderr.read()
            tokens += struct.unpack("<i", data)
        return tokens[:-1]

    good = prompt("p.bin", ids)
    greedy = ask(f"{good} 40")
    words = numbers("tokenize", "The capital of Japan is Tokyo.")
    assert greedy[:len(words)] == words and len(greedy) < 40, greedy
    assert ask(f"{good} 3") == words[:3] and ask(f"{good} 0") == []
    warm = ask(f"{good} 12 samp=1.5,1,0,1,7")
    assert warm == ask(f"{good} 12 samp=1.5,1,0,1,7") and len(warm) > 1
    assert ask(f"{good} 40 samp=0,1,1,1") == greedy
    assert ask(good + "\t40\r") == greedy
    bad = [("nowhere.bin 4", "nowhere.bin"), (good, "FILE.bin COUNT"), (f"{good} x", "'x'"), (f"{good} -1", "'-1'"),
           (f"{good} 4 samp=1", "1 numbers"), (f"{good} 4 samp=1,2,3,4", "top-p"), (f"{good} 4 samp=1,1,0,1,2,3", "more than"),
           (f"{good} 4 draft=3", "'draft=3'"), ("park", "FILE.bin COUNT"), (prompt("v.bin", [2, 99999]) + " 4", "99999"),
           (prompt("l.bin", [5] * 5000) + " 4", "5000")]
    for line, word in bad:
        assert ask(line) == [], line
    assert ask(f"{good} 40") == greedy
    p.stdin.close()
    told = [line for line in p.stderr.read().splitlines() if not line.startswith("load: ")]  # on a busy machine
    assert p.wait(300) == 0 and len(told) == len(bad), told
    for line, (asked, word) in zip(told, bad):
        assert line.startswith("ingle: error: ") and word in line, (asked, line)
    os.close(out)
    r = subprocess.run([INGLE, "daemon", "--stream-fd", "77"], capture_output=True, text=True)
    assert r.returncode == 2 and "descriptor 77 is not open" in r.stderr


def sockets(d, folder):
    """What is no regular file is not replaced by one."""
    path = os.path.join(folder, "fifo")
    os.mkfifo(path)
    d.ask(do="generate", session="f", prompt="a", max_tokens=4)
    refused = d.ask(do="save", session="f", file=path)[-1]
    assert refused["event"] == "error" and "no regular file" in refused["error"], refused
    assert os.path.exists(path) and not os.path.isfile(path)
    assert d.ask(do="reset", session="f")[-1]["event"] == "reset"


def drafting():
    """The same text, and what was drafted."""
    nano = "tests/data/nano/nano-gemma4"
    d = Daemon("-m", f"{nano}-Q4_K_M.gguf", "--draft", f"{nano}-mtp-Q8_0.gguf")
    ask = lambda **more: d.ask(do="generate", messages=[{"role": "user", "content": "Say 1 to 30."}], temperature=0, **more)
    plain, much = ask(draft_max=0), ask(draft_min=3)
    assert text(plain) == text(much) and text(plain).startswith("1 2 3"), (plain, much)
    assert plain[-1]["drafted"] == 0 and much[-1]["drafted"] >= much[-1]["accepted"] > 0, (plain[-1], much[-1])
    status = d.ask(do="status")[-1]
    assert (status["draft"], status["drafted"]) == ("mtp", much[-1]["drafted"]), status
    d.end()


def deaf():
    """The reader has gone: the answer ends, and the process with its input."""
    d = Daemon()
    d.say({"do": "generate", "id": "x", "prompt": "Once upon a time", "ignore_end": True})
    d.until("text")
    d.p.stdout.close()
    d.p.stdin.close()
    assert d.p.wait(300) == 1


def main():
    d = Daemon("--parallel", "4")
    whole = answers(d)
    sessions(d, whole)
    together(d, whole)
    cancelling(d)
    refusing(d)
    failures_leave_no_session(d)
    shapes(d)
    with tempfile.TemporaryDirectory() as folder:
        sockets(d, folder)
        streams(folder)
    drafting()
    deaf()
    d.say({"do": "generate", "id": "last", "prompt": "Once", "max_tokens": 100, "ignore_end": True})
    assert d.end()[-1]["finish"] == "length", "the end of the input cut an answer"
    q = Daemon()
    # at once: there is no time between the two for an answer
    q.say('{"do": "generate", "id": "cut", "prompt": "Once", "ignore_end": true}\n{"do": "quit"}')
    assert q.end()[-1]["finish"] == "cancelled"
    print("ok")


main()
