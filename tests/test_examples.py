"""What README, docs/ and examples/ show is run on the real model, as it stands there, and prints what they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pseudo_terminal import Terminal
from tiny_gguf import write_model

import pantheon

ROOT = Path(__file__).resolve().parent.parent
README, CHAT = ROOT / "README.md", ROOT / "docs" / "chat.md"
API_C, API_PYTHON = ROOT / "docs" / "api-c.md", ROOT / "docs" / "api-python.md"
pytestmark = pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="the sources are not here")
REPLIES = b"The capital of France is Paris.\nThe capital of Germany is Berlin.\n"


def snippets(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language on a page, in order; there must be one."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} has no block of {language}"
    return found


def find_compiler() -> list[str]:
    """The words that call the C compiler: that of the environment, of Python, or cc."""
    words = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    return words if shutil.which(words[0]) else ["cc"]


def compile_c(*words: str | Path, cwd: Path) -> None:
    """One call of the compiler; every warning is an error."""
    command = [*find_compiler(), *map(str, words), "-std=c11", "-Wall", "-Wextra", "-Werror"]
    built = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


@pytest.fixture(scope="module")
def chat_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/chat.c, built by the very command that the README tells to type."""
    folder = tmp_path_factory.mktemp("example")
    for name in ("csrc", "examples"):
        (folder / name).symlink_to(ROOT / name)
    (command,) = re.findall(r"^    cc (.* examples/chat\.c .*)$", README.read_text("utf-8"), re.MULTILINE)
    words = [sorted(folder.glob(word)) if "*" in word else [word] for word in command.split()]
    compile_c(*(word for group in words for word in group), "-save-temps=obj", cwd=folder)
    return folder / "chat"


@pytest.fixture(scope="module")
def core_objects(chat_program: Path) -> list[Path]:
    """The core as that command compiled it, for the programs that are shown in documents."""
    return sorted(path for path in chat_program.parent.glob("*.o") if not path.name.endswith("chat.o"))


def build_snippet(page: Path, objects: list[Path], folder: Path) -> Path:
    """The one C program of a page, built in a folder."""
    (code,) = snippets(page, "c")
    (folder / "snippet.c").write_text(code)
    compile_c(
        "-D_GNU_SOURCE", "-pthread", f"-I{ROOT / 'csrc'}", "snippet.c", *objects, "-lm", "-o", "snippet", cwd=folder
    )
    return folder / "snippet"


def run(*command: str | Path, cwd: Path | None = None) -> tuple[int, bytes, bytes]:
    """(exit status, standard output, standard error)."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_the_c_program_holds_the_conversation(chat_program: Path, smollm2: str) -> None:
    assert run(chat_program, smollm2) == (0, REPLIES, b"")


def test_the_python_program_holds_the_same_conversation(smollm2: str) -> None:
    assert run(sys.executable, ROOT / "examples" / "chat.py", smollm2) == (0, REPLIES, b"")


def test_the_c_program_goes_on_after_a_reply_that_was_cut_as_the_package_does(
    chat_program: Path, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "tiny.gguf", n_ctx=1024)
    messages = ["Tell me about it", "more", "and more"]
    lines = b""
    with pantheon.load(path) as model:
        chat = model.chat(system="You are a helpful assistant.", reply_limit=128)
        replies = [chat.send(message) for message in messages]
        for reply in replies:
            lines += b"".join(model.tokenizer.piece(token) for token in reply.tokens) + b"\n"
    assert "length" in {reply.finish_reason for reply in replies[:-1]}
    assert run(chat_program, path, *messages) == (0, lines, b"")


def test_the_c_program_says_what_is_wrong(chat_program: Path, tmp_path: Path) -> None:
    assert run(chat_program)[0] == 2
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    status, output, error = run(chat_program, broken)
    assert (status, output) == (1, b"")
    assert error.startswith(b"load: ")


# ---- Documents -----------------------------------------------------------------------------------------------------


def run_python(code: str, folder: Path) -> str:
    """What a snippet prints when it runs in an empty folder. It must end well and write nothing to standard error."""
    status, output, error = run(sys.executable, "-c", code, cwd=folder)
    assert (status, error) == (0, b"")
    return output.decode("utf-8")


def outputs_shown(page: Path) -> list[str]:
    """The indented text right below each Python snippet of a page, without its indentation."""
    blocks = re.findall(
        r"^```python\n.*?^```\n\n((?:    [^\n]*\n)+)", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return ["".join(line[4:] for line in block.splitlines(keepends=True)) for block in blocks]


def test_the_python_of_the_readme_prints_the_conversation_and_its_counts(smollm2: str, tmp_path: Path) -> None:
    (code,) = snippets(README, "python")
    prompt, reused = re.findall(r"# (\d+) tokens of prompt, (\d+) of them reused", code)[0]
    lines = run_python(code, tmp_path)
    assert lines.startswith(REPLIES.decode())
    assert f"prompt_tokens={prompt}, reused_tokens={reused}," in lines


@pytest.mark.parametrize("page", [README, CHAT], ids=lambda page: page.name)
def test_a_transcript_is_what_the_command_in_it_prints(page: Path, smollm2: str, tmp_path: Path) -> None:
    for block in snippets(page, "console"):
        command, _, shown = block.partition("\n")
        if "\n> " in shown:
            continue  # typed: see below
        pantheon_here = f'pantheon() {{ {shlex.quote(sys.executable)} -m pantheon "$@"; }}'
        status, output, error = run("sh", "-c", f"{pantheon_here}; ({command.removeprefix('$ ')}) 2>&1", cwd=tmp_path)
        assert (status, output.decode("utf-8"), error) == (0, shown, b"")


def test_a_conversation_that_was_typed_is_what_a_terminal_shows(smollm2: str, tmp_path: Path) -> None:
    typed_ones = [block for block in snippets(CHAT, "console") if "\n> " in block]
    assert len(typed_ones) == 2
    for number, block in enumerate(typed_ones):
        hold(block.removesuffix("\n"), smollm2, tmp_path / str(number))


def hold(block: str, smollm2: str, home: Path) -> None:
    """Type what was typed in a transcript, and compare what is shown."""
    command, *turns = block.split("\n> ")
    command, _, banner = command.partition("\n")
    arguments = [smollm2 if word == "smollm2" else word for word in shlex.split(command)[2:]]
    terminal = Terminal(*arguments, home=home, term="dumb")
    assert terminal.prompt().replace("\r\n", "\n") == f"{banner}\n> "
    for turn in turns:
        typed, _, shown = turn.partition("\n")
        assert terminal.ask(typed) == shown.strip("\n")
    terminal.type("\x04")
    assert terminal.leaves_with() == 0


def test_each_snippet_about_the_chat_prints_what_stands_below_it(smollm2: str, tmp_path: Path) -> None:
    codes = snippets(CHAT, "python")
    assert [run_python(code, tmp_path) for code in codes] == outputs_shown(CHAT)


def test_the_snippets_of_the_python_page_run_together_and_print_what_their_comments_say(
    smollm2: str, tmp_path: Path
) -> None:
    lines = run_python("\n".join(snippets(API_PYTHON, "python")), tmp_path).splitlines()
    for line in ("7", "[2] 2", "(5, 49152)", "b' Paris'"):
        assert line in lines
    assert lines[-1].startswith("FileError ")


def test_the_c_program_of_the_readme_completes_a_text(core_objects: list[Path], smollm2: str, tmp_path: Path) -> None:
    program = build_snippet(README, core_objects, tmp_path)
    status, output, error = run(program, smollm2)
    assert (status, error) == (0, b"")
    assert output.startswith(b" Paris")
    assert run(program, "no-such-file.gguf", cwd=tmp_path)[0] == 1


def test_the_c_program_of_the_api_page_goes_step_by_step(
    core_objects: list[Path], smollm2: str, tmp_path: Path
) -> None:
    with pantheon.load(smollm2) as model:
        isa = model.info.isa
    assert run(build_snippet(API_C, core_objects, tmp_path), smollm2) == (0, f"{isa}, Paris\n".encode(), b"")


def test_the_command_that_builds_the_c_program_is_the_same_wherever_it_stands() -> None:
    pages = (README, API_C, ROOT / "examples" / "chat.c")
    found = [re.search(r"cc -O3 .*examples/chat\.c.*", page.read_text("utf-8")) for page in pages]
    assert len({match[0] for match in found if match}) == 1
    assert all(found)
