#!/usr/bin/env python3
"""openapi_sdk.py - the server against its own description (share/openapi.json): schemathesis makes
requests that fit it and requests that do not, and checks every answer and every event of a stream.

usage: PYTHON openapi_sdk.py INGLE [SECONDS [SEED]]      PYTHON has the packages schemathesis and
       openapi-spec-validator; else exit 77

Without SECONDS the requests are those that the description itself suggests, the same each time;
with them random ones follow, for so long with each model.
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import client  # noqa: E402

try:
    import openapi_spec_validator
    import schemathesis  # noqa: F401
except ImportError:
    sys.exit(77)

SPEC = "share/openapi.json"
SECONDS = int(sys.argv[2]) if len(sys.argv) > 2 else 0
SEED = sys.argv[3] if len(sys.argv) > 3 else "1"
SMALL = ["-c", "512", "--predict", "16", "--parallel", "8", "--limit", "resumable=8", "--quiet"]


def spec(folder):
    """The description without what only fits where something is kept: most requests would be 404."""
    with open(SPEC) as f:
        doc = json.load(f)
    openapi_spec_validator.validate(doc)
    for name in ("previous_response_id", "conversation"):
        del doc["components"]["schemas"]["ResponsesRequest"]["properties"][name]
    # A deadline of a millisecond is a 504, as it should be.
    with open(os.path.join(folder, "schemathesis.toml"), "w") as f:
        f.write('[checks]\nnot_a_server_error.expected-statuses = ["2xx", "4xx", "504"]\n')
    path = os.path.join(folder, "openapi.json")
    with open(path, "w") as f:
        json.dump(doc, f)
    return path


def probe(folder, what, *options):
    """True: no answer was a server's error or broke the description."""
    with client.Server(sys.argv[1], *SMALL, "--slot-save-path", folder, *options) as server:
        command = [os.path.join(os.path.dirname(sys.executable), "st"), "run", spec(folder),
                   "--url", server.url + "/v1", "--exclude-tag", "unsupported", "--exclude-tag", "router", "--seed", SEED,
                   # What fits may still be refused: a tool that is not there, a prompt that is too long.
                   "--exclude-checks", "positive_data_acceptance",
                   "--phases", "coverage,fuzzing" if SECONDS else "coverage",
                   "--max-examples", "20", "--max-time", str(SECONDS or 120), "--workers", "1",
                   "--max-response-time", "30", "--continue-on-failure", "--no-color",
                   "--warnings", "off"]
        r = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True)
        status, _, answer = server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Hello"}], "temperature": 0})
        ok = r.returncode == 0 and status == 200 and answer["choices"][0]["message"]["content"]
        print(f"{what}: " + ("ok, " + r.stdout.strip().splitlines()[-1] if ok else r.stdout))
        return bool(ok)


def main():
    runs = [("nano-gemma4",)]
    if SECONDS or os.environ.get("INGLE_TEST_SOAK"):  # the description is not of a model
        try:
            runs.append(("nano-v4", "--model", os.path.abspath(client.nano_v4())))
        except client.unittest.SkipTest as e:
            print(f"skipped: {e}")
    with tempfile.TemporaryDirectory() as folder:
        return all([probe(folder, *r) for r in runs])


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
