"""lucebox.py - lucebox's probes of clients and its server's tests, unmodified, against one running `ingle serve`."""
import contextlib, json, pathlib, re, subprocess, sys, tempfile, time, urllib.request

# What cannot pass here, and why: the beginning of a check's line, or "probe CLIENT NAME".
EXPECTED = {
    "server logs prefix cache activity": "it reads the log of their server",
    "reasoning streaming OpenAI": "the first delta has content null, as llama.cpp's tests want it",
    "streaming chat completion": "the first delta has content null, as llama.cpp's tests want it",
    "GET /": "the page is there",
    "first output type is message": "a thought is an item of its own and comes first",
    "content type is output_text": "a thought is an item of its own and comes first",
}


@contextlib.contextmanager
def serving(ingle, port, *options):
    base = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([ingle, "serve", "-q", "--port", str(port), "--alias", "dflash", "--temp", "0",
                               "--cors-origins", "*", *options], stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(base + "/health")
                break
            time.sleep(0.05)
        yield base
    finally:
        server.terminate()
        server.wait(60)


def checks(argv):
    """[(what, whether it passed)] of a script that prints a line for each."""
    out = subprocess.run([sys.executable, *map(str, argv)], text=True, capture_output=True).stdout
    print(out)
    return [(text, mark == "✅") for mark, text in re.findall(r"^\s*(✅|❌) (.*)$", out, re.M)]


def probes(root, base):
    with tempfile.TemporaryDirectory() as d:
        report = pathlib.Path(d) / "report.json"
        subprocess.run([sys.executable, str(root / "harness/client_test_runner.py"), "probe", "--url", base,
                        "--clients", "all", "--json-out", str(report)], check=False)
        clients = json.loads(report.read_text())["clients"]
    return [(f"probe {c['client']} {p['name']}", p["ok"]) for c in clients for p in c["probes"]]


def run(o, root):
    codex = root / "share/codex-model.json"
    lucebox = pathlib.Path(o.lucebox)
    with serving(o.ingle, o.port, "--think", "--codex-model", str(codex)) as base:
        suites = {
            "client_test_runner.py": probes(lucebox, base),
            "test_server_comprehensive.py": checks([lucebox / "server/tests/test_server_comprehensive.py",
                                                    "--base-url", base]),
            "test_server_smoke.py": checks([lucebox / "server/tests/test_server_smoke.py", "--base-url", base]),
        }
    bad = 0
    for name, results in suites.items():
        failed = [text for text, passed in results if not passed]
        new = [text for text in failed if not any(text.startswith(e) for e in EXPECTED)]
        bad += len(new) + (not results)
        print(f"{name:32}{len(results) - len(failed):5} passed{len(new):5} failed"
              f"{len(failed) - len(new):5} expected to fail")
        for text in new:
            print(f"  failed: {text}")
    return bad > 0
