#!/usr/bin/env python3
"""smoke.py URL [URL ...] MODEL [--draft KIND|off|any] [--runs N] [--key KEY] [--test-empty] - looks at servers that run somewhere:
the model is there, its /props show the drafter that was asked for, a chat answers, tokens are drafted and accepted, last_used_ms
advances, a second request finds its prefix, identical runs give one text and never accept nothing.  MODEL 'any': the one that a
router used last; the answers must have its real name.  --test-empty: all models of a router are unloaded at the end, and then 'any'
must be a 400.  Addresses where nothing answers are left out.  Exit status 0: all of it; 1: not, or no address answers; 2: wrong use."""
import argparse, json, sys, time, urllib.error, urllib.parse, urllib.request

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

    def answers(self):
        """None, or why nothing answers there."""
        try:
            self.ask("/health")
        except urllib.error.HTTPError:
            return None  # it loads, or wants a key
        except (urllib.error.URLError, OSError, ValueError) as e:
            return str(getattr(e, "reason", e))
        return None


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


def resolve(server, check):
    """The name behind 'any': that of an answer, which the list must have."""
    name = chat(server, "any", PROMPT)["model"]
    found = entry(server, name)
    check("'any' answers with a real name", found is not None and name != "any", name)
    if found and "status" in found:
        check("... of a model that is loaded", found["status"]["value"] == "loaded", found["status"]["value"])
    return name


def empty(server, check):
    """A router without a model in memory has nothing that 'any' could be."""
    models = [m for m in server.ask("/v1/models")["data"] if "status" in m]
    if not check("it is a router (--test-empty)", bool(models)):
        return
    for m in models:
        server.ask("/models/unload", {"model": m["id"]})
    while any(m["status"]["value"] != "unloaded" for m in server.ask("/v1/models")["data"]):
        time.sleep(0.1)
    try:
        chat(server, "any", PROMPT)
        status, text = 200, ""
    except urllib.error.HTTPError as e:
        status, text = e.code, e.read().decode(errors="replace")
    check("without a loaded model 'any' is a 400", status == 400 and "resident" in text, f"{status} {text[:120]}")


def look(server, o, check):
    if o.model == "any":
        o = argparse.Namespace(**{**vars(o), "model": resolve(server, check)})
    found = entry(server, o.model)
    if not check("the model is listed", found is not None, o.model):
        return
    if found.get("status", {}).get("value", "loaded") != "loaded":
        chat(server, o.model, PROMPT)  # a router loads it
    before = entry(server, o.model).get("last_used_ms", 0)
    p = server.ask("/props?model=" + urllib.parse.quote(found["id"], safe=""))["speculative"]
    proposer = p["proposer"]
    right = proposer == o.draft or (o.draft == "any" and proposer != "off") or (o.draft == "dflash" and proposer == "dflash2")
    check("/props show the drafter", right, f"{proposer}, {p.get('draft_path')}; {p.get('why_no_network') or p.get('why_off_now') or 'drafts'}")
    first = chat(server, o.model, PROMPT)
    check("the answer has the model's name", first["model"] == found["id"], first["model"])
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
    a.add_argument("url", nargs="+")
    a.add_argument("model")
    a.add_argument("--draft", default="any", help="the proposer that /props must show, 'any' or 'off'")
    a.add_argument("--runs", type=int, default=5)
    a.add_argument("--key")
    a.add_argument("--test-empty", action="store_true", help="unload all models of a router at the end")
    o = a.parse_args()
    check = Checks()
    began = time.monotonic()
    n_seen = 0
    for url in o.url:
        server = Server(url, o.key)
        why = server.answers()
        if why is not None:
            print(f"skip {url}: {why}")
            continue
        n_seen += 1
        if len(o.url) > 1:
            print(f"---- {url}")
        try:
            look(server, o, check)
            if o.test_empty:
                empty(server, check)
        except (urllib.error.URLError, OSError, KeyError, ValueError) as e:
            check("the server answers as expected", False, f"{type(e).__name__}: {e}")
    check("an address answers", n_seen > 0, f"{n_seen} of {len(o.url)}")
    print(f"{'failed' if check.failed else 'passed'} in {time.monotonic() - began:.1f} s")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
