"""The command line. Exit status: 0 nothing wrong, 1 a fault was found, 2 bad usage or unreadable input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from fuzz import quiet  # noqa: F401 - before the libraries are imported
from oracles.verdict import Finding

app = typer.Typer(
    help="Differential-testing fuzzer for ExecuTorch's weight-fold pass. To fuzz: pytest -n auto fuzz/",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(soft_wrap=True, highlight=False)
FAULT, USAGE = 1, 2

SubjectOption = Annotated[
    str, typer.Option("--subject", help="The fold under test; see `pytest fuzz/ --help`.")
]
CaseArgument = Annotated[Path, typer.Argument(help="A case, such as corpus/cases/NAME.json.")]


def _refuse(error: Exception | str) -> NoReturn:
    print(f"foldfuzz: {error}", file=sys.stderr)
    raise typer.Exit(USAGE)


@app.command()
def replay(
    cases: Annotated[list[Path], typer.Argument(help="Cases to judge again.")],
    subject: SubjectOption = "fold",
) -> None:
    """Judges cases again, every oracle, and prints what each finds."""
    from corpus.store import CaseError, load
    from fuzz.judging import Judge
    from fuzz.presentation import evidence
    from fuzz.subjects import SubjectError, check_name

    try:
        loaded = [(path, load(path)) for path in cases]
        check_name(subject)
    except (CaseError, SubjectError) as error:
        _refuse(error)
    faults = 0
    with Judge(subject) as judge:
        for path, case in loaded:
            verdict = judge(case.program)
            faults += bool(verdict.of("fault", "gap") if subject != "stock" else verdict.of("fault"))
            console.print(f"{path}: {subject}: {verdict.outcome} {verdict.reason}".rstrip(), markup=False)
            for finding in verdict.findings:
                console.print(f"  {finding.attribution}", markup=False)
                console.print("\n".join(evidence(finding)), markup=False)
    raise typer.Exit(FAULT if faults else 0)


@app.command()
def show(
    case: CaseArgument,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Default: the one that the case convicts.")
    ] = None,
) -> None:
    """Prints a stand-alone script that needs torch, torchao and executorch, and not this project."""
    from corpus.store import CaseError, load
    from fuzz.script import script
    from fuzz.subjects import SubjectError, check_form, check_name

    try:
        loaded = load(case)
        if subject is not None:
            check_name(subject)
        # A name that comes from the case is never imported here.
        name = subject or loaded.convicted() or "fold"
        check_form(name)
    except (CaseError, SubjectError) as error:
        _refuse(error)
    print(script(loaded, name), end="")


@app.command()
def check(
    model: Annotated[Path, typer.Argument(help="A program saved with torch.export.save.")],
    subject: SubjectOption = "fold",
) -> None:
    """Lowers your own program with and without the fold, runs both, and asks every oracle."""
    from fuzz.judging import RefusedError, check_file
    from fuzz.presentation import check_rows, evidence
    from fuzz.subjects import SubjectError, check_name

    if not model.is_file():
        _refuse(f"{model}: expected a program saved with torch.export.save, got no such file")
    try:
        check_name(subject)
        checked = check_file(model, subject)
    except (RefusedError, SubjectError) as error:
        _refuse(error)
    if isinstance(checked, Finding):
        console.print(f"{model}: {checked.attribution}", markup=False)
        console.print("\n".join([*evidence(checked), checked.trace]), markup=False)
        raise typer.Exit(FAULT if checked.attribution == "fault" else 0)
    table = Table(title=str(model), title_justify="left")
    table.add_column("")
    for column in checked.columns:
        table.add_column(column.name, overflow="fold")
    for row in check_rows(checked.columns):
        table.add_row(*row)
    console.print(table)
    for name in checked.oracles:
        found = [item for item in checked.verdict.findings if item.oracle == name]
        unjudged = checked.verdict.unjudged.get(name)
        silent = f"not judged: {unjudged}" if unjudged else "passes"
        console.print(f"{name}: {', '.join(item.attribution for item in found) or silent}", markup=False)
        for item in found:
            console.print("\n".join(evidence(item)), markup=False)
    raise typer.Exit(FAULT if checked.verdict.of("fault") else 0)


@app.command()
def generate(
    count: Annotated[int, typer.Option("-n", min=1, help="How many programs.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same programs.")] = 0,
    only: Annotated[str | None, typer.Option("--only", help="Members, comma-separated.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print statistics, not programs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    members: Annotated[bool, typer.Option("--list", help="List families and members.")] = False,
) -> None:
    """Draws programs and prints their source, or what the strategies draw on the whole."""
    import msgspec

    from fuzz.generating import MemberError, draw, listing, measure, names_of
    from fuzz.presentation import stats_table
    from generators.program import encode
    from generators.render import render

    if members:
        print(listing(), end="")
        return
    try:
        names = names_of(only)
    except MemberError as error:
        _refuse(error)
    if stats:
        measured = measure(names, count, seed)
        if as_json:
            print(msgspec.json.encode(measured).decode())
        else:
            console.print(stats_table(measured))
        return
    for item in draw(names, count, seed):
        source = f"# {', '.join(item.members)}\n{render(item.program)}"
        print(encode(item.program).decode() if as_json else source)


def main() -> None:
    """Entry point of the ``foldfuzz`` command."""
    app()
