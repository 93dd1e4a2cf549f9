"""The documentation never lies: its code runs, prints what it says, and its links lead somewhere.

The blocks of a page run one after the other, in one empty directory:

- `python` blocks are executed; one that begins with a comment like `# networks.py` becomes that
  file instead;
- an `output` block holds what the Python block before it prints;
- in `console` blocks, `$ ranp ...` and `$ torchrun ...` are run, and what follows is their output.

In outputs `...` stands for anything, and numbers that may differ a little with the machine are
announced by `about`: ```output about.
"""

from __future__ import annotations

import html
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

import ranp
import ranp.cli
from ranp.datasets import synthesise
from tests.fresh import run_fresh
from tests.report.browser import Browser, find_chromium

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("src/**/*.md")]
BLOCK = re.compile(r"^```(python|output|console)( about)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]
# What a page's reader has already.
PREPARED: dict[str, Callable[[], None]] = {
    "docs/data.md": lambda: synthesise("brats", "BraTS2018", cases=5, size=24, seed=0),
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


SLOW = {
    *("docs/speed.md", "docs/compare.md"),
    *("docs/howto/deploy.md", "docs/howto/distributed-scoring.md"),
}
"""Pages that measure, train, export, or start processes."""


@pytest.fixture
def empty_directory(tmp_path, monkeypatch):
    """A directory to work in, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, id=name_of(page), marks=pytest.mark.slow if name_of(page) in SLOW else ()
        )
        for page in WITH_CODE
    ],
)
def test_code_blocks_run(page, empty_directory):
    PREPARED.get(name_of(page), lambda: None)()
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "__main__"}
    text, printed = page.read_text(), ""
    for block in BLOCK.finditer(text):
        kind, about, content = block.groups()
        line = text[: block.start()].count("\n") + 1
        if kind == "output":
            assert_same(printed, content, f"{name_of(page)}:{line}", about=bool(about))
        elif kind == "console":
            run_console(content, f"{name_of(page)}:{line}", about=bool(about))
        elif named := re.match(r"# (\w+\.py)\n", content):
            Path(named[1]).write_text(content)
        else:
            # Empty lines in front make line numbers of errors those of the page.
            code = compile("\n" * line + content, str(page), "exec")
            with redirect_stdout(io.StringIO()) as stdout:
                exec(code, namespace)
            printed = stdout.getvalue()


def run_console(content: str, where: str, *, about: bool) -> None:
    """Runs the commands of a console block; those that fail must show how."""
    for command, expected in commands_of(content):
        program, *arguments = shlex.split(command, comments=True)
        if program == "ranp":
            code, printed = run_ranp(arguments)
        elif program == "torchrun":
            torchrun = [sys.executable, "-m", "torch.distributed.run", *arguments]
            done = subprocess.run(torchrun, capture_output=True, text=True, timeout=120)
            code, printed = done.returncode, done.stdout
        else:
            raise AssertionError(f"{where}: nobody runs '{program}'")
        shown = expected.startswith("ranp: ")
        assert (code != 0) is shown, f"{where}: {command} ends with {code}:\n{printed}"
        if expected.strip():
            assert_same(printed, expected, f"{where}: {command}", about=about)


def commands_of(content: str) -> list[tuple[str, str]]:
    """Commands with their outputs; one that ends in a backslash goes on in the next line."""
    command = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:[^$].*\n|\n)*)", re.MULTILINE)
    return [(each[1].replace("\\\n", " "), each[2]) for each in command.finditer(content)]


def run_ranp(arguments: list[str]) -> tuple[int, str]:
    """Exit code and results of a command; its messages instead where it fails."""
    argv, sys.argv = sys.argv, ["ranp", *arguments]
    try:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            ranp.cli.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
        return code, err.getvalue() if code else out.getvalue()
    finally:
        sys.argv = argv
    raise AssertionError("the command line always ends with an exit code")


def assert_same(printed: str, expected: str, where: str, *, about: bool = False) -> None:
    """Compares words, numbers and signs; `...` stands for any of them."""
    got, wanted = tokens(printed), tokens(expected)
    parts: list[list[str]] = [[]]
    for token in wanted:
        if token == "...":
            parts.append([])
        else:
            parts[-1].append(token)
    start = 0
    for i, part in enumerate(parts):
        last = len(got) - len(part)
        first_try = last if i == len(parts) - 1 and i > 0 else start
        last_try = start if i == 0 else last
        places = range(max(first_try, start), last_try + 1)
        found = (at for at in places if agree(got[at : at + len(part)], part, about))
        at = next(found, None)
        assert at is not None, f"{where}: no '{' '.join(part)}' in what it prints:\n{printed}"
        start = at + len(part)
    assert start == len(got) or not parts[-1], f"{where} prints more:\n{printed}"


def tokens(text: str) -> list[str]:
    """Words, numbers and signs; bars are pictures of the numbers beside them."""
    return re.findall(r"\.\.\.|\d[\d,]*(?:\.\d+)?|[^\W\d]+|[^\w\s█░]", text)


def agree(got: list[str], wanted: list[str], about: bool) -> bool:
    if not about or len(got) != len(wanted):
        return got == wanted
    return all(g == w or nearly(g, w) for g, w in zip(got, wanted, strict=True))


def nearly(got: str, wanted: str) -> bool:
    """Numbers that may differ with the machine: by a fifth, or by one in the last place."""
    if not (got[0].isdigit() and wanted[0].isdigit()):
        return False
    unit = 10.0 ** -len(wanted.partition(".")[2])
    a, b = (float(text.replace(",", "")) for text in (got, wanted))
    return abs(a - b) <= max(0.2 * b, 1.001 * unit)


def test_commands_go_on_behind_a_backslash():
    content = "$ ranp prune net \\\n    --seed 3 \\\n  --json\n1 2\n\n3\n$ ranp doctor\n"
    (prune, printed), doctor = commands_of(content)
    assert prune.split() == ["ranp", "prune", "net", "--seed", "3", "--json"]
    assert printed == "1 2\n\n3\n" and doctor == ("ranp doctor", "")


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("a b\nc", "a  b c", True),
        ("a b", "a", False),
        ("a", "a b", False),
        ("a b c d", "a ... d", True),
        ("a b c d", "a ... c", False),
        ("a b c d", "... c b ...", False),
        ("a b a", "a ... b ... a", True),
        ("a b", "a ... b ... b", False),
        ("a 10.0 b", "a 10.1 b", False),
    ],
)
def test_outputs_are_compared(printed, expected, same):
    if same:
        assert_same(printed, expected, "here")
    else:
        with pytest.raises(AssertionError):
            assert_same(printed, expected, "here")


@pytest.mark.parametrize(
    ("got", "wanted", "same"),
    [("10", "11", True), ("1,000", "1,150", True), ("10.0", "13.0", False), ("2", "4", False)],
)
def test_numbers_are_compared(got, wanted, same):
    assert agree(["about", got], ["about", wanted], about=True) is same


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_reference_names_the_whole_public_interface():
    reference = (ROOT / "docs/reference/api.md").read_text()
    missing = [n for n in ranp.__all__ if n != "__version__" and f"ranp.{n}" not in reference]
    assert not missing


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built documentation; warnings are errors."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    program = "import sys; from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
    options = ("-W", "--keep-going", "-q", "-E")
    done = run_fresh(program, *options, "docs", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def test_site_needs_no_network(site):
    loaded = re.compile(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=[\"'](?:https?:)?//[^>]*>")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        assert not loaded.findall(page.read_text()), page


def test_site_knows_every_command_and_method(site):
    commands = text_of(site / "reference/cli.html")
    for command in ranp.cli.app.registered_commands:
        assert f"$ ranp {command.name} " in commands
    for option in ("--sparsity X", "--lambda X", "--json", "--quiet, -q"):
        assert option in commands
    methods = text_of(site / "reference/methods.html")
    assert all(f"{name}: " in methods for name in ranp.METHODS)


def text_of(page: Path) -> str:
    return html.unescape(" ".join(re.sub(r"<[^>]*>", "", page.read_text()).split()))


def test_site_in_a_browser(site):
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    browser = Browser(program)
    try:
        for name in ("index", "explanation/method", "reference/api", "reference/cli"):
            page = browser.open(site / f"{name}.html", width=390, dark=name == "index")
            assert page.complaints() == []
            assert all(url.startswith(("file:", "data:")) for url in page.requests())
            wide = "document.documentElement.scrollWidth - window.innerWidth"
            assert page.run(wide) <= 0, f"{name} is wider than a phone"
            page.screenshot(ROOT / f"out/screenshots/docs-{name.replace('/', '-')}.png")
            if name == "explanation/method":
                heights = "[...document.querySelectorAll('.equation math')]"
                heights += ".map(e => e.getBoundingClientRect().height)"
                assert len(page.run(heights)) == 10 and min(page.run(heights)) > 15
            page.close()
    finally:
        browser.close()
