"""Chats with other formats than the tiny model's own: options of Chat and of the command line, said and obeyed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_worlds import FAMILIES
from tiny_gguf import VType, array_of, tokenizer_metadata, write_model

import pantheon
from pantheon import cli
from pantheon.errors import ArgumentError, ChatTemplateError

FORCE: dict[str, Any] = {"logit_bias": {40: 1000.0}}
Make = Callable[..., str]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A tiny model whose first tokens are the control tokens of a family."""
    folder = tmp_path_factory.mktemp("models")
    made: dict[str, str] = {}

    def make(name: str, **changes: Any) -> str:
        key = name + repr(changes)
        if key not in made:
            facts = {**FAMILIES[name], **changes}
            controls = facts["controls"]
            entries = tokenizer_metadata()
            (_, tokens), _ = entries["tokenizer.ggml.tokens"]
            (_, types), _ = entries["tokenizer.ggml.token_type"]
            spare = len(tokens) - 12  # the last merges make way, so that the size of the vocabulary stays
            merges = entries["tokenizer.ggml.merges"][0][1][:-12]
            tokens = [
                "<unused0>",
                "<unused1>",
                "<unused2>",
                *tokens[3:spare],
                *controls,
                *(f"<spare{n}>" for n in range(12 - len(controls))),
            ]
            types = [5, 5, 5, *types[3:spare], *[3] * len(controls), *[5] * (12 - len(controls))]
            metadata: dict[str, Any] = {
                "tokenizer.ggml.tokens": array_of(VType.STRING, tokens),
                "tokenizer.ggml.token_type": array_of(VType.INT32, types),
                "tokenizer.ggml.merges": array_of(VType.STRING, merges),
                "tokenizer.ggml.bos_token_id": (tokens.index(facts.get("bos", controls[0])), VType.UINT32),
                "tokenizer.ggml.eos_token_id": (tokens.index(facts["eos"]), VType.UINT32),
                "tokenizer.ggml.add_bos_token": (facts.get("add_bos", False), VType.BOOL),
            }
            path = folder / f"{len(made)}.gguf"
            made[key] = write_model(path, template=facts["template"], metadata=metadata)
        return made[key]

    return make


def test_a_broken_template_stops_neither_a_load_nor_a_chat_with_another(model_of: Make) -> None:
    with pantheon.load(model_of("gemma", template="{% if %}")) as model:
        with pytest.raises(ChatTemplateError, match="this file's own template: .* line 1"):
            model.chat()
        assert model.generate("a", max_tokens=1, **FORCE).tokens == (40,)
        chat = model.chat(template="gemma")
        assert (chat.style, chat.send("a", max_tokens=2, **FORCE).tokens) == ("Gemma", (40, 40))


def test_later_turns_evaluate_only_what_is_new_in_every_family(model_of: Make) -> None:
    for name in FAMILIES:
        with pantheon.load(model_of(name)) as model:
            chat = model.chat()
            first = chat.send("a", max_tokens=3, **FORCE)
            second = chat.send("b", max_tokens=2, **FORCE)
            piece = model.tokenizer.piece(40)
            assert not piece.startswith(b" "), "else the templates that trim would rewrite it"
            reused = first.usage.prompt_tokens + 2  # the last sampled token was not evaluated yet
            wanted = (
                first.usage.prompt_tokens - 1 if name == "mistral-v3" else reused
            )  # that one writes a space before it
            assert second.usage.reused_tokens >= wanted, name


def test_a_system_text_for_gemma_is_refused_or_folded_and_said(model_of: Make) -> None:
    with pantheon.load(model_of("gemma")) as model:
        with pytest.raises(ChatTemplateError, match="fold_system=True"):
            model.chat("Be brief.").send("hi", max_tokens=1)
        chat = model.chat("Be brief.", fold_system=True)
        assert any("in front of the first user message" in note for note in chat.notes)
        chat.send("hi", max_tokens=1, **FORCE)
        text = model.tokenizer.decode(chat._state.tokens)
        assert text == "<bos><start_of_turn>user\nBe brief.\n\nhi<end_of_turn>\n<start_of_turn>model\n"
        chat.clear()
        chat.send("again", max_tokens=1, **FORCE)
        assert "Be brief.\n\nagain" in model.tokenizer.decode(chat._state.tokens)
        assert model.chat(fold_system=True).notes == []


def test_roles_out_of_order_are_refused_before_anything_is_read(model_of: Make) -> None:
    said = [{"role": "user", "content": "a"}]
    with pantheon.load(model_of("mistral-tekken")) as model:
        chat = model.chat(messages=said)
        with pytest.raises(ChatTemplateError, match="message 1 .*merge_roles=True") as caught:
            chat.send("b")
        assert (caught.value.index, len(chat.messages)) == (1, 1)
        assert model.chat(messages=said, merge_roles=True).send("b", max_tokens=1, **FORCE).tokens == (40,)


def test_tools_reach_the_template(model_of: Make) -> None:
    template = "{% if tools %}{{ tools|tojson }}{% endif %}" + FAMILIES["chatml"]["template"]
    with pantheon.load(model_of("chatml", template=template)) as model:
        plain, told = model.chat(), model.chat(tools=[{"name": "weather"}])
        hi = [{"role": "user", "content": "hi"}]
        assert told.count(hi) > plain.count(hi)
        told.send("hi", max_tokens=1, **FORCE)
        assert model.tokenizer.decode(told._state.tokens).startswith('[{"name": "weather"}]<|im_start|>user')
        with pytest.raises(ArgumentError, match="tools holds a set"):
            model.chat(tools=[{"name": {1}}])


def test_the_control_token_behind_a_reply_ends_it_and_its_spelling_does_not(model_of: Make) -> None:
    with pantheon.load(model_of("llama3")) as model:
        end = model.tokenizer.token_id("<|eot_id|>")
        assert end not in model.tokenizer.stop_ids
        reply = model.chat().send("a", max_tokens=5, logit_bias={end: 1000.0})
        assert (reply.text, reply.finish_reason) == ("", "stop")
        less = int(model.tokenizer.encode("<")[0])
        reply = model.chat().send("a", max_tokens=5, logit_bias={less: 1000.0})
        assert (reply.text, reply.finish_reason) == ("<<<<<", "length")


# ---- The command line


def test_info_says_what_is_in_force_and_why(model_of: Make, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> dict[str, str]:
        assert cli.run(["info", *arguments]) == 0
        return {line[:16].strip(): line[16:] for line in capsys.readouterr().out.splitlines()}

    gemma = said(model_of("gemma"))
    assert gemma["template"] == "Gemma: the file's own template, which writes Gemma"
    assert gemma["system text"].startswith("not taken; --fold-system")
    assert gemma["begins with"].startswith("<bos> (")
    assert "<end_of_turn> (" in gemma["stops at"]
    assert "<eos> (" in gemma["stops at"]
    assert "[INST]" in said(model_of("mistral"))["note"]
    assert said(model_of("chatml"))["begins with"] == "no BOS"
    assert said(model_of("chatml"), "--template", "chatml")["template"] == "ChatML: forced by template='chatml'"
    assert "guess" in said(model_of("chatml", template=None))["note"]
    assert said(model_of("mistral", template=None))["template"].startswith("no chat: this file has no chat template")


def test_the_banner_names_the_format_and_notes_stand_below_it(
    model_of: Make, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    own = "{{ messages[0].content }}"
    for arguments, lines in (
        (["chat", model_of("gemma")], ["Chat mode (Gemma). Type /quit to exit, /clear to reset."]),
        (
            ["--chat", "--model", model_of("chatml", template=own)],
            ["Chat mode (the file's own template). Type /quit to exit, /clear to reset."],
        ),
        (
            ["chat", model_of("gemma"), "--system", "S", "--fold-system"],
            [
                "Chat mode (Gemma). Type /quit to exit, /clear to reset.",
                "(Gemma takes no system text: it is put in front of the first user message)",
            ],
        ),
        (
            ["chat", model_of("gemma"), "--template", "passthrough"],
            ["Chat mode (passthrough). Type /quit to exit, /clear to reset."],
        ),
    ):
        with open(empty) as nothing:
            monkeypatch.setattr("sys.stdin", nothing)
            assert cli.run(arguments) == 0
        assert capfd.readouterr().err.splitlines() == lines


def test_flags_of_chats_go_with_chats(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--model", "x", "--prompt", "y", "--fold-system"]) == 2
    assert "--fold-system goes with --chat" in capsys.readouterr().err
