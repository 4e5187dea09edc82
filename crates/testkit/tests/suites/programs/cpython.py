"""Runs modules of CPython's own test suite and writes one line a test to a file: outcome, name, reason.

usage: cpython.py RESULTS SKIPPED MODULE...   (SKIPPED: names of classes to leave out, separated by commas, or -)

The file tells the outcomes of a run that hangs or dies as far as it came; a complete one ends with the line `finished`.
"""

import sys
import unittest

from test import support

# Everything but the internet and what needs gigabytes.
support.use_resources = ["cpu", "subprocess", "decimal", "walltime"]


class Result(unittest.TextTestResult):
    """Writes each outcome when it is known."""

    lines = None

    def note(self, outcome, test, reason=""):
        reason = " ".join(str(reason).split())[-300:]
        print(outcome, test.id(), reason, sep="\t", file=self.lines, flush=True)

    def startTest(self, test):
        self.note("started", test)
        super().startTest(test)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note("passed", test)

    def addError(self, test, err):
        super().addError(test, err)
        self.note("error", test, err[1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note("failed", test, err[1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.note("failed", test, f"{subtest}: {err[1]}")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note("skipped", test, reason)

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.note("passed", test, "fails as expected")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note("failed", test, "unexpected success")


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def main():
    results, skipped, *modules = sys.argv[1:]
    skipped = set(skipped.split(","))
    loaded = unittest.defaultTestLoader.loadTestsFromNames(modules)
    tests = [test for test in flat(loaded) if type(test).__name__ not in skipped]
    with open(results, "w", encoding="utf-8") as lines:
        Result.lines = lines
        runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
        runner.run(unittest.TestSuite(tests))
        print("finished", "", "", sep="\t", file=lines, flush=True)


if __name__ == "__main__":
    main()
