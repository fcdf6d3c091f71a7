"""The handler of the judging child; importing this module makes the process fit for many programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from fuzz import quiet  # noqa: F401 - before the libraries are imported
from fuzz.checking import CheckError, check
from fuzz.messages import CheckRequest, Refusal, Request
from fuzz.subjects import SubjectError, resolve
from oracles.judge import judge_program
from oracles.warm import warm_up

warm_up()


def handle(request: bytes, stage: Callable[[str], None]) -> bytes:
    """Answers a ``Request`` or a ``CheckRequest`` in the child."""
    asked = msgspec.json.decode(request, type=Request | CheckRequest)
    stage("subject")
    try:
        subject = resolve(asked.subject)
        if isinstance(asked, Request):
            torch.set_num_threads(1)  # Tiny tensors, and a worker on every core already.
            verdict = judge_program(asked.program, subject, asked.oracles, stage, asked.attribute)
            return msgspec.json.encode(verdict)
        return msgspec.json.encode(check(Path(asked.path), subject, stage))
    except (CheckError, SubjectError) as error:
        return msgspec.json.encode(Refusal(str(error)))
