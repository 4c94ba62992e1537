"""The built-in styles: detection, architectures, each style's ids spelled out and against its family's template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_conformance import CASES, check_template, check_vocabulary
from chat_worlds import FAMILIES, NOW, conversations, open_vocabulary, reference, write_family, write_vocabulary

import pantheon
from pantheon.chat import STYLES, ChatFormat, Message, detect_style, format_first, format_turn, style_from_arch
from pantheon.chat.choice import make_format
from pantheon.chat.messages import Turn
from pantheon.errors import ChatTemplateError

Open = Callable[[str], pantheon.Tokenizer]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """A tokenizer with the control tokens of a family."""
    opened: dict[str, pantheon.Tokenizer] = {}

    def open_family(name: str) -> pantheon.Tokenizer:
        if name not in opened:
            opened[name] = open_vocabulary(write_family(tmp_path_factory.mktemp("family"), name))[0]
        return opened[name]

    return open_family


def spelled(tokenizer: pantheon.Tokenizer, ids: Any) -> str:
    """The ids as text, control tokens in guillemets."""
    pieces = ((tokenizer.piece(token).decode("latin-1"), tokenizer.is_control(token)) for token in ids.tolist())
    return "".join(f"«{piece}»" if control else piece for piece, control in pieces)


# ---- Style detection

FRAME = "{% for m in messages %}"


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}", "chatml"),
        ("{{ '[INST] ' + message['content'] + ' [/INST]' }}", "mistral"),
        ("{{'<|user|>' + '\n' + message['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n'}}", "phi3"),
        ("{{ message['content'] }}", None),
        ("", None),
        ("<|im_start|> alone", None),
        ("{{ '[INST] ' + message['content'] + '[/INST]' }}", "mistral-v3"),
        ("{{ '[INST]' + message['content'] + '[/INST]' }}", "mistral-tekken"),
        ("{{ '[INST] <<SYS>>\n' + message['content'] + ' [/INST]' }}", None),
        (f"{FRAME}<|user|>\n{{{{ m.content }}}}<|end|>\n{{% endfor %}}<|assistant|>", "phi3"),
        (f"{FRAME}<|user|>\n{{{{ m.content }}}}\n<|end|>\n{{% endfor %}}<|assistant|>", None),
        (f"{FRAME}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}<|im_end|>\n{{% endfor %}}", "chatml"),
        (f"{FRAME}<|im_start|>{{{{ m.role }}}}<|im_sep|>{{{{ m.content }}}}<|im_end|>{{% endfor %}}", None),
        (f"{FRAME}<|user|>\n{{{{ m.content }}}}{{{{ eos_token }}}}\n{{% endfor %}}<|assistant|>", "zephyr"),
        ("[gMASK]<sop><|user|>{{ message['content'] }}<|assistant|>{{ eos_token }}", None),
        *((facts["template"], name) for name, facts in FAMILIES.items()),
    ],
)
def test_detection_looks_for_a_styles_markers_and_form(template: str, style: str | None) -> None:
    assert detect_style(template) == style


# ---- Architectures


@pytest.mark.parametrize(
    ("architecture", "style"),
    [
        ("qwen2", "chatml"), ("qwen3", "chatml"), ("llama", "chatml"), ("mistral", "mistral"), ("phi3", "phi3"),
        ("gemma3", "gemma"), ("smollm3", "chatml"), ("unheard-of", None), ("", None),
    ],
)  # fmt: skip
def test_an_architecture_has_the_style_of_its_chat_models(architecture: str, style: str | None) -> None:
    assert style_from_arch(architecture) == style


def test_an_architecture_has_no_style_whose_markers_the_vocabulary_lacks(family: Open) -> None:
    assert style_from_arch("llama", family("chatml")) == "chatml"
    assert style_from_arch("llama", family("llama3")) == "llama3"
    assert style_from_arch("llama", family("zephyr")) is None
    assert style_from_arch("qwen2", family("llama3")) is None


def test_styles_have_names_and_titles() -> None:
    titles = {name: style.title for name, style in STYLES.items()}
    assert titles == {
        "chatml": "ChatML", "mistral": "Mistral", "mistral-v3": "Mistral v3", "mistral-tekken": "Mistral tekken",
        "phi3": "Phi-3", "llama3": "Llama-3", "gemma": "Gemma", "zephyr": "Zephyr", "passthrough": "passthrough",
    }  # fmt: skip
    assert all(name == style.name for name, style in STYLES.items())


# ---- ChatML, Phi-3, Mistral, passthrough, and the others


@pytest.mark.parametrize(
    ("style", "system", "user", "text"),
    [
        ("chatml", "S", "U", "«<|im_start|>»system\nS«<|im_end|>»\n«<|im_start|>»user\nU«<|im_end|>»\n"
         "«<|im_start|>»assistant\n"),
        ("chatml", None, "U", "«<|im_start|>»user\nU«<|im_end|>»\n«<|im_start|>»assistant\n"),
        ("chatml", "", "", "«<|im_start|>»system\n«<|im_end|>»\n«<|im_start|>»user\n«<|im_end|>»\n"
         "«<|im_start|>»assistant\n"),
        ("phi3", "S", "U", "«<|system|>»\nS«<|end|>»\n«<|user|>»\nU«<|end|>»\n«<|assistant|>»\n"),
        ("phi3", None, "U", "«<|user|>»\nU«<|end|>»\n«<|assistant|>»\n"),
        ("mistral", None, "U", "«<s>»[INST] U [/INST]"),
        ("mistral-v3", None, "U", "«<s>»«[INST]» U«[/INST]»"),
        ("mistral-tekken", None, "U", "«<s>»«[INST]»U«[/INST]»"),
        ("llama3", "S ", " U", "«<|begin_of_text|>»«<|start_header_id|>»system«<|end_header_id|>»\n\nS«<|eot_id|>»"
         "«<|start_header_id|>»user«<|end_header_id|>»\n\nU«<|eot_id|>»«<|start_header_id|>»assistant«<|end_header_id|>»\n\n"),
        ("gemma", None, "U ", "«<bos>»«<start_of_turn>»user\nU«<end_of_turn>»\n«<start_of_turn>»model\n"),
        ("zephyr", "S", "U", "«<s>»<|system|>\nS«</s>»\n<|user|>\nU«</s>»\n<|assistant|>\n"),
    ],
)  # fmt: skip
def test_the_first_turn(family: Open, style: str, system: str | None, user: str, text: str) -> None:
    ids = format_first(style, family(style), system, user)
    assert (str(ids.dtype), ids.ndim) == ("uint32", 1)
    assert spelled(family(style), ids) == text


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("chatml", "«<|im_end|>»\n«<|im_start|>»user\nU«<|im_end|>»\n«<|im_start|>»assistant\n"),
        ("phi3", "«<|end|>»\n«<|user|>»\nU«<|end|>»\n«<|assistant|>»\n"),
        ("mistral", "«</s>» [INST] U [/INST]"),
        ("mistral-v3", "«</s>»«[INST]» U«[/INST]»"),
        ("mistral-tekken", "«</s>»«[INST]»U«[/INST]»"),
        ("llama3", "«<|eot_id|>»«<|start_header_id|>»user«<|end_header_id|>»\n\nU«<|eot_id|>»"
         "«<|start_header_id|>»assistant«<|end_header_id|>»\n\n"),
        ("gemma", "«<end_of_turn>»\n«<start_of_turn>»user\nU«<end_of_turn>»\n«<start_of_turn>»model\n"),
        ("zephyr", "«</s>»\n<|user|>\nU«</s>»\n<|assistant|>\n"),
    ],
)  # fmt: skip
def test_a_later_turn_begins_with_the_end_of_the_reply(family: Open, style: str, text: str) -> None:
    assert spelled(family(style), format_turn(STYLES[style], family(style), "U")) == text


def test_passthrough_is_the_text_alone(family: Open) -> None:
    tokenizer = family("chatml")
    for text in ("Once upon", "<|im_end|>", " two "):
        assert format_first("passthrough", tokenizer, None, text).tolist() == tokenizer.encode(text).tolist()
        assert format_turn("passthrough", tokenizer, text).tolist() == tokenizer.encode(text).tolist()
    assert spelled(family("mistral"), format_first("passthrough", family("mistral"), None, "U")) == "«<s>»U"


def test_markers_in_what_is_formatted_stay_text(family: Open) -> None:
    for name in FAMILIES:
        tokenizer = family(name)
        bare = [token for token in format_first(name, tokenizer, None, "x").tolist() if tokenizer.is_control(token)]
        for marker in FAMILIES[name]["controls"]:
            for text in (marker, f"a{marker}b", marker * 3):
                ids = format_first(name, tokenizer, None, text).tolist()
                assert [token for token in ids if tokenizer.is_control(token)] == bare


@pytest.mark.parametrize("style", ["mistral", "mistral-v3", "mistral-tekken", "gemma", "passthrough"])
def test_a_style_without_a_system_role_says_so(family: Open, style: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"'system'.*--fold-system") as caught:
        format_first(style, family(style if style in FAMILIES else "chatml"), "S", "U")
    assert caught.value.index == 0


def test_a_style_is_refused_where_its_markers_are_text(family: Open) -> None:
    for style, other in (("chatml", "phi3"), ("phi3", "chatml"), ("mistral-v3", "mistral"), ("llama3", "gemma")):
        with pytest.raises(ChatTemplateError, match="has no control token"):
            format_first(style, family(other), None, "U")
    with pytest.raises(ChatTemplateError, match="there is no chat style 'vicuna'"):
        format_first("vicuna", family("chatml"), None, "U")


# ---- Against the templates of the families


@pytest.mark.parametrize("name", FAMILIES)
def test_the_style_and_the_template_of_a_family_give_the_same_ids(tmp_path: Path, name: str) -> None:
    tokenizer, metadata = open_vocabulary(write_family(tmp_path, name))
    own = make_format(tokenizer, metadata, now=NOW)
    forced = make_format(tokenizer, metadata, forced=name, now=NOW)
    assert (own.title, own.style) == (STYLES[name].title, STYLES[name])
    assert own.stop_ids == forced.stop_ids
    assert own.takes_system == forced.takes_system == ("system" in STYLES[name].roles)
    facts = FAMILIES[name]
    for conversation in conversations(own.takes_system):
        turns = [Turn(Message(*message)) for message in conversation]
        plain = [{"role": role, "content": content} for role, content in conversation]
        for opening in (True, False):
            prompt = own.prompt(turns, NOW, generation_prompt=opening)
            theirs = reference(
                facts["template"],
                messages=plain,
                bos_token=facts.get("bos", ""),
                eos_token=facts["eos"],
                add_generation_prompt=opening,
            )
            bos = "" if not facts.get("add_bos") or theirs.startswith(facts["bos"]) else facts["bos"]
            assert prompt.text == bos + theirs
            assert prompt.ids.tolist() == forced.prompt(turns, NOW, generation_prompt=opening).ids.tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_check_of_published_templates_passes_those_of_the_families(tmp_path: Path, name: str) -> None:
    outcome = check_template(FAMILIES[name]["template"])
    assert (outcome.style, outcome.differ, outcome.lenient) == (name, {}, ())
    assert {"u", "uau", "ua"} <= set(outcome.same)
    assert outcome.own_share > 0.2
    assert check_vocabulary(write_family(tmp_path, name), FAMILIES[name]["template"]) == []
    broken = check_template("{{ ['a']|map('upper')|tojson }}")
    assert (broken.same, broken.lenient) == ((), tuple(CASES))


@pytest.mark.parametrize("name", FAMILIES)
def test_turn_by_turn_is_the_whole_conversation(tmp_path: Path, name: str) -> None:
    tokenizer, metadata = open_vocabulary(write_family(tmp_path, name))
    own = make_format(tokenizer, metadata, now=NOW)
    reply = tokenizer.encode("yes").tolist()
    ids = [*format_first(name, tokenizer, None, "Hello").tolist(), *reply]
    ids += [*format_turn(name, tokenizer, "And?").tolist(), *reply, *format_turn(name, tokenizer, "Why?").tolist()]
    turns = [Turn(Message("user", text)) for text in ("Hello", "And?", "Why?")]
    turns[1:1] = [Turn(Message("assistant", "yes"), tuple(reply))]
    turns[3:3] = [Turn(Message("assistant", "yes"), tuple(reply))]
    whole = own.prompt(turns, NOW).ids.tolist()
    if name == "mistral-v3":  # its template writes a space in front of a reply, which the model has not sampled here
        assert spelled_text(tokenizer, whole).replace("[/INST] ", "[/INST]") == spelled_text(tokenizer, ids)
    else:
        assert whole == ids


def spelled_text(tokenizer: pantheon.Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids)


def test_a_style_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    tokenizer, metadata = open_vocabulary(write_family(tmp_path, "mistral", template=None))

    def refused(chat_format: ChatFormat, *roles: str) -> int | None:
        with pytest.raises(ChatTemplateError) as caught:
            chat_format.prompt([Turn(Message(role, "x")) for role in roles])
        return caught.value.index

    mistral = make_format(tokenizer, metadata, forced="mistral")
    assert refused(mistral, "assistant") == 0
    assert refused(mistral, "user", "user") == 1
    assert refused(mistral, "user", "tool") == 1
    assert refused(mistral, "user", "assistant", "system") == 2
    with pytest.raises(ChatTemplateError, match="no way to tell the model of tools"):
        mistral.prompt([Turn(Message("user", "x"))], tools=[{"name": "f"}])
    mistral.prompt([Turn(Message("user", "x"))] * 3, merge_roles=True)


def test_a_file_without_a_template_is_served_by_its_architectures_style(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", FAMILIES["gemma"]["controls"], bos="<bos>", eos="<eos>", arch="gemma3")
    chat_format = make_format(*open_vocabulary(path))
    assert (chat_format.title, chat_format.takes_system) == ("Gemma", False)
    assert "gemma3" in chat_format.reason
