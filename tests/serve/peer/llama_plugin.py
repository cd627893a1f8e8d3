"""llama_plugin.py - for pytest beside llama.cpp's server tests: expected failures, a table at the end.

With --any-text what the model writes counts as right, so that what the tests look at behind it is seen."""
import collections, fnmatch, os, re

import pytest

from llama_expected import EXPECTED, FREE


def name(item):
    return re.sub(r"^.*/", "", item.nodeid.split("::")[0]) + "::" + item.nodeid.split("::", 1)[1]


def pytest_addoption(parser):
    parser.addoption("--any-text", action="store_true", help="the model may write what it likes")


def pytest_configure(config):
    if config.getoption("--any-text"):
        import utils
        utils.match_regex = lambda regex, text: True


def pytest_collection_modifyitems(config, items):
    import openai, utils  # the suite's
    # A server that does not start is none of the failures that are expected.
    raises = (AssertionError, LookupError, StopIteration, TypeError, OSError, openai.OpenAIError, utils.ServerError)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="needs a model that is not here"))
            continue
        for pattern, kind, reason in EXPECTED:
            if fnmatch.fnmatchcase(name(item), pattern):
                if kind != "text" or not config.getoption("--any-text"):
                    item.add_marker(pytest.mark.xfail(reason=f"{kind}: {reason}", strict=True,
                                                      raises=raises))
                break


def pytest_runtest_setup(item):
    free = any(fnmatch.fnmatchcase(name(item), p) for p in FREE)
    os.environ["INGLE_PEER_ENDS"] = "free" if free else ""


def pytest_terminal_summary(terminalreporter):
    count = collections.defaultdict(collections.Counter)
    kinds = ("passed", "failed", "error", "xfailed", "xpassed", "skipped")
    for kind in kinds:
        for report in terminalreporter.stats.get(kind, []):
            count[report.nodeid.split("::")[0].rsplit("/", 1)[-1]][kind] += 1
    terminalreporter.write_line(f"\n{'file':32}" + "".join(f"{k:>9}" for k in kinds))
    for file in sorted(count):
        terminalreporter.write_line(f"{file:32}" + "".join(f"{count[file][k]:9}" for k in kinds))
