#!/usr/bin/env python3
"""llama_shim.py - stands where llama.cpp's server tests look for llama-server.

Its options become those of `ingle serve` (the program in $INGLE), its test models one of ours; for a
model that has no counterpart here /health is answered and nothing else, since the suite starts every
model once before its first test.  Options that do not exist here are left out: what a test then finds
missing is listed in llama_expected.py.
"""
import http.server, os, pathlib, sys

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"
NANO = "ggml-org/test-model-stories260K"
MODELS = {
    NANO: "nano/nano-gemma4-Q4_K_M.gguf",
    "ggml-org/test-model-stories260K-infill": "nano/nano-gemma4-Q4_K_M.gguf",
}
SAME = {"--host", "--temp", "--seed", "--threads", "--cors-origins", "--no-slots", "--no-ui",
        "--slot-save-path", "--models-max", "--no-models-autoload"}
RENAMED = {"--n-predict": "--predict", "--batch-size": "--chunk", "--alias": "--alias", "--tags": "--tag"}
LISTS = {"--host", "--alias", "--tags"}
# What their cache has when the tests of several models run, and the repositories of their presets.
CACHED = ["ggml-org/tinygemma3-GGUF:Q8_0", "ggml-org/test-model-stories260K:F32", "ggml-org/test-model-stories260K-infill:F32"]
ENDS = (1, 106, 50)  # of the nano model; the suite's own model hardly ever ends an answer
FLAGS = {"--slots", "--no-slots", "--no-ui", "--jinja", "--no-jinja", "--metrics", "--verbose", "--offline",
         "--cont-batching", "--embedding", "--reranking", "--kv-unified", "--swa-full", "--context-shift",
         "--no-models-autoload", "--no-mmproj", "--no-cache-idle-slots", "--ui-mcp-proxy",
         "--backend_sampling"}


def read(argv):
    """[(option, value or None)] of llama-server's command line."""
    out, i = [], 0
    while i < len(argv):
        if argv[i] in FLAGS:
            out.append((argv[i], None))
            i += 1
        else:
            out.append((argv[i], argv[i + 1]))
            i += 2
    return out


def lines(text):
    """A file with these lines that nobody else can read, and that is gone with the server."""
    fd = os.memfd_create("lines")
    os.fchmod(fd, 0o600)
    os.write(fd, text.encode() + b"\n")
    os.set_inheritable(fd, True)
    return f"/proc/self/fd/{fd}"


def translate(options):
    """The arguments of `ingle serve`, or None: this model is not served."""
    given = dict(options)
    model, repo = given.get("--model"), given.get("--hf-repo")
    several = not model and not repo
    if several:
        presets = "".join(f"[{name}]\nmodel = {DATA / MODELS[NANO]}\n" for name in CACHED)
        out = ["--models", lines(presets), "--limit", "resumable=8"]
        if "--models-preset" in given:
            out += ["--models", given["--models-preset"]]
    elif model or MODELS.get(repo):
        out = ["-m", model or str(DATA / MODELS[repo])]
    else:
        return None
    out += ["--port", given["--port"]]
    for token in () if os.environ.get("INGLE_PEER_ENDS") else ENDS:
        out += ["--logit-bias", f"{token}=-100"]
    slots = int(given.get("--parallel", 4))
    out += ["--parallel", str(slots)]
    if "--ctx-size" in given:
        # There the slots share the context; here each conversation has its own.
        n = int(given["--ctx-size"])
        if several:
            n = max(n, 32768)  # an answer that keeps a model busy for two seconds
        out += ["--ctx", str(n if "--kv-unified" in given else n // slots)]
    for name, value in options:
        if name in SAME or name in RENAMED:
            values = [None] if value is None else \
                value.split(",") if name in LISTS else [value]
            for v in values:
                out += [RENAMED.get(name, name)] + ([] if v is None else [v])
        elif name == "--api-key":
            out += ["--api-key-file", lines(value.replace(",", "\n"))]
        elif name == "--verbose":
            out += ["--verbose-replies"]
        elif name == "--reasoning" and value == "on":
            out += ["--think"]
    return out


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = self.path == "/health"
        body = b'{"status":"ok"}' if found else b'{"error":{"message":"this model is not served"}}'
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_OPTIONS = do_GET

    def log_message(self, *args):
        pass


def main():
    options = read(sys.argv[1:])
    arguments = translate(options)
    if arguments is None:
        given = dict(options)
        http.server.ThreadingHTTPServer(("127.0.0.1", int(given["--port"])), Health).serve_forever()
    ingle = os.environ["INGLE"]
    os.execv(ingle, [ingle, "serve", *arguments])


if __name__ == "__main__":
    main()
