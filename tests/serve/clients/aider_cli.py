#!/usr/bin/env python3
"""aider_cli.py - aider asks one question and ends.

usage: PYTHON aider_cli.py INGLE      PYTHON has aider-chat; else exit 77
"""
# packages: aider-chat==0.86.2
import os, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import real

AIDER = real.program("AIDER", os.path.join(os.path.dirname(sys.executable), "aider"))


class Aider(real.Case):
    def change(self, x):
        return dict(x.body, max_tokens=64) if "messages" in x.body else None

    def test_message(self):
        for stream in "--stream", "--no-stream":
            status, out, errors = self.wait(self.start(
                AIDER, "--model", "openai/local", "--openai-api-base", self.tap.url + "/v1", "--openai-api-key", "none",
                "--message", "What is in the note?", "--yes-always", "--no-git", "--no-auto-commits", "--analytics-disable",
                "--no-check-update", "--no-show-model-warnings", "--no-suggest-shell-commands", "--no-detect-urls",
                "--chat-mode", "ask", stream, "note.txt"))
            self.assertEqual(status, 0, out[-1500:] + errors[-1500:])
            self.assertNotIn("litellm.", out)  # its errors
        self.assertEqual(self.refused(), [])
        self.assertIn("heliotrope", str(self.tap.of("/completions")[0].body))
        self.assertTrue(self.tap.of("/completions")[0].body["stream"])


if __name__ == "__main__":
    real.main()
