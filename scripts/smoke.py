#!/usr/bin/env python3
"""smoke.py URL MODEL [--draft KIND|off|any] [--runs N] [--key KEY] - looks at a server that runs somewhere: the model is there,
its /props show the drafter that was asked for, a chat answers, tokens are drafted and accepted, last_used_ms advances, a second
request finds its prefix, identical runs give one text and never accept nothing.  The runs ask for drafts (draft_min): they test the drafter, not
whether it pays.  Exit status 0: all of it; 1: not; 2: wrong use."""
import argparse, json, sys, time, urllib.error, urllib.request

PROMPT = "Say 1 to 40."


class Server:
    def __init__(self, url, key):
        self.url = url.rstrip("/")
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers)
        with urllib.request.urlopen(request, timeout=600) as r:
            return json.load(r)


class Checks:
    def __init__(self):
        self.failed = 0

    def __call__(self, name, ok, more=""):
        print(f"{'ok  ' if ok else 'FAIL'} {name}{': ' if more else ''}{more}")
        self.failed += not ok
        return ok


def chat(server, model, prompt, **more):
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 120, "temperature": 0, **more}
    return server.ask("/v1/chat/completions", body)


def text_of(answer):
    message = answer["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


def entry(server, model):
    for m in server.ask("/v1/models")["data"]:
        if model in (m["id"], *m.get("aliases", [])):
            return m
    return None


def look(server, o, check):
    found = entry(server, o.model)
    if not check("the model is listed", found is not None, o.model):
        return
    before = found.get("last_used_ms", 0)
    p = server.ask("/props")["speculative"]
    proposer = p["proposer"]
    right = proposer == o.draft or (o.draft == "any" and proposer != "off") or (o.draft == "dflash" and proposer == "dflash2")
    check("/props show the drafter", right, f"{proposer}, {p.get('draft_path')}; {p.get('why_no_network') or p.get('why_off_now') or 'drafts'}")
    first = chat(server, o.model, PROMPT)
    check("a chat answers", bool(text_of(first).strip()), repr(text_of(first)[:60]))
    own = first["timings"]
    print(f"     by itself: {own.get('draft_n', 0)} drafted, {own.get('draft_n_accepted', 0)} right; {own['ingle']['draft']['why_off'] or 'drafts'}")
    texts, drafted, accepted = [], [], []
    for _ in range(o.runs):
        r = chat(server, o.model, PROMPT, **({} if o.draft == "off" else {"draft_min": 2}))
        texts.append(text_of(r))
        drafted.append(r["timings"].get("draft_n", 0))
        accepted.append(r["timings"].get("draft_n_accepted", 0))
    check("identical runs give one text", len(set(texts + [text_of(first)])) == 1)
    if o.draft != "off":
        check("tokens are drafted", sum(drafted) > 0, str(drafted))
        check("tokens are accepted", sum(accepted) > 0, str(accepted))
        check("no run accepts nothing", all(a > 0 for a in accepted), str(accepted))
    else:
        check("nothing is drafted", sum(drafted) == 0, str(drafted))
    again = chat(server, o.model, PROMPT)
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    check("a second request is warm", cached > 0, f"{cached} of {again['usage']['prompt_tokens']} tokens")
    after = entry(server, o.model).get("last_used_ms", 0)
    check("last_used_ms advances", after > before, f"{before} to {after}")


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("url")
    a.add_argument("model")
    a.add_argument("--draft", default="any", help="the proposer that /props must show, 'any' or 'off'")
    a.add_argument("--runs", type=int, default=5)
    a.add_argument("--key")
    o = a.parse_args()
    check = Checks()
    began = time.monotonic()
    try:
        look(Server(o.url, o.key), o, check)
    except (urllib.error.URLError, OSError, KeyError, ValueError) as e:
        check("the server answers as expected", False, f"{type(e).__name__}: {e}")
    print(f"{'failed' if check.failed else 'passed'} in {time.monotonic() - began:.1f} s")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
