"""The regression suite: every case of the corpus on the fold, and on every subject that it names."""

from __future__ import annotations

import pytest

from corpus.store import CASES, PASSES, cases, load
from fuzz.judging import Judge

PATHS = cases()
CONVICTIONS = [
    (path, subject)
    for path in PATHS
    for subject, expected in load(path).expect.items()
    if expected.verdict != PASSES
]


@pytest.fixture(scope="module")
def judges():
    """One judge a subject, made when it is first needed."""
    made: dict[str, Judge] = {}

    def judge(subject: str) -> Judge:
        return made.setdefault(subject, Judge(subject))

    yield judge
    for item in made.values():
        item.close()


def verdict_of(judge, path) -> str:
    verdict = judge(load(path).program)
    assert verdict.outcome != "invalid", verdict.reason
    first = verdict.findings[0] if verdict.findings else None
    return f"{first.oracle} {first.attribution}" if first else PASSES


def test_the_corpus_convicts_every_subject_that_is_known_to_be_wrong():
    assert PATHS, CASES
    assert {"constant-prop", "constant-prop-unfunctionalized", "stock"} <= {s for _, s in CONVICTIONS}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_fold_does_what_the_case_states(judges, path):
    assert load(path).expect["fold"].verdict == PASSES
    assert verdict_of(judges("fold"), path) == PASSES


@pytest.mark.parametrize(
    ("path", "subject"), CONVICTIONS, ids=[f"{path.stem}-{subject}" for path, subject in CONVICTIONS]
)
def test_case_convicts_the_subject(judges, path, subject):
    assert verdict_of(judges(subject), path) == load(path).expect[subject].verdict
