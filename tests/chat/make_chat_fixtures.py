"""Writes the fixtures of data/chat/: conversations as transformers renders and tokenises them with the chat templates
of published models. Run by hand, once:

    python3 -m venv ~/chat-venv && ~/chat-venv/bin/pip install transformers jinja2
    ~/chat-venv/bin/pip download --no-deps -d ~/chat-wheels trl==1.16.0 axolotl==0.19.0 fschat==0.2.36
    ~/chat-venv/bin/python tests/chat/make_chat_fixtures.py ~/chat-wheels

fixtures/templates.json   [{"name", "source", "sha256" of the template's text without white space at its
                          ends, "bos", "eos", "cases": [{"messages", "tools", "generation_prompt", "text" or "error",
                          "assistant": [[begin, end], ...] in bytes}]}]
fixtures/tokens.json      [{"template", "tokenizer", "bos", "eos", "added": special tokens behind the tokenizer's own with their ids, "messages", "ids",
                          "assistant": 1 for each token that says what the assistant says}]; tokenizers are those of
                          tests/tokenizer/fixtures

Templates are taken from wheels of trl and axolotl, which have copies of those that models are published with; Vicuna has
none, and is written as FastChat's Conversation does. Those of LLAMA2 and ZEPHYR are below. What the assistant says is
found by rendering beginnings of a conversation, and compared with the {% generation %} marks of TRL's training templates
where TRL has one: there it is the same but for white space at the ends.
"""

import glob
import hashlib
import json
import os
import sys
import types
import zipfile

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "fixtures")
TOKENIZERS = os.path.join(HERE, "..", "tokenizer", "fixtures")

# tokenizer_config.json of meta-llama/Llama-2-7b-chat-hf (and 13b, 70b).
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception("
    "'Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and "
    "system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
    "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + "
    "content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")

# tokenizer_config.json of HuggingFaceH4/zephyr-7b-beta (also of TinyLlama-1.1B-Chat-v1.0).
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}"
    "\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif "
    "message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if "
    "loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")

TRL = "trl/chat_templates/"
AXOLOTL = "axolotl/utils/chat_templates/templates/"

SYSTEM = {"role": "system", "content": "You are a pirate.\nAnswer briefly."}
HELLO = {"role": "user", "content": "Hello, who are you?"}
PIRATE = {"role": "assistant", "content": "A pirate, matey!"}
SPACES = {"role": "user", "content": "  \tWhere is\n\nyour ship? \n"}
SHIP = {"role": "assistant", "content": "\u00a0 In Zürich, über dem 海. \n "}
ASK = {"role": "user", "content": "How hot is it in \"Oslo\"?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "abcde1234", "type": "function", "function": {
    "name": "weather", "arguments": {"city": "Oslo é \"x\"", "days": 2, "exact": True, "at": None, "l": [1.5, "a"]}}}]}
CALLS = {"role": "assistant", "content": "Let me look.", "tool_calls": CALL["tool_calls"] + [
    {"id": "fghij5678", "type": "function", "function": {"name": "clock", "arguments": {}}}]}
QUIET = {**CALLS, "content": ""}
ANSWER = {"role": "tool", "content": "{\"degrees\": 3}", "tool_call_id": "abcde1234"}
SECOND = {"role": "tool", "content": "12:00", "tool_call_id": "fghij5678"}
COLD = {"role": "assistant", "content": "3 degrees."}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
         {"type": "function", "function": {"name": "clock", "description": "The <time>", "parameters": {}}}]

CHATS = [[HELLO, PIRATE], [HELLO, PIRATE, SPACES, SHIP], [SYSTEM, HELLO, PIRATE], [SYSTEM, HELLO, PIRATE, SPACES, SHIP],
         [HELLO], [SYSTEM, HELLO], [HELLO, PIRATE, SPACES]]
TOOL_CHATS = [([ASK, CALL, ANSWER, COLD], TOOLS), ([ASK, CALLS, ANSWER, SECOND, COLD, HELLO, PIRATE], TOOLS),
              ([HELLO, PIRATE, ASK, CALL, ANSWER, COLD], None), ([HELLO, PIRATE], TOOLS), ([ASK, CALL, ANSWER], TOOLS),
              ([SYSTEM, ASK, CALLS, ANSWER, SECOND, COLD], TOOLS), ([ASK, QUIET, ANSWER, SECOND, COLD], TOOLS)]


class Wheels:
    def __init__(self, folder):
        self.files = [zipfile.ZipFile(path) for path in sorted(glob.glob(os.path.join(folder, "*.whl")))]

    def has(self, name):
        return any(name in file.namelist() for file in self.files)

    def read(self, name):
        for file in self.files:
            if name in file.namelist():
                return file.read(name).decode("utf-8")
        sys.exit(f"{name}: in none of the wheels")


def vicuna(wheels):
    """FastChat's own writer. Its file imports only what Python has."""
    module = types.ModuleType("conversation")
    sys.modules["conversation"] = module
    exec(compile(wheels.read("fastchat/conversation.py"), "conversation.py", "exec"), module.__dict__)

    def render(messages, tools, generation_prompt, bos, _eos):
        conversation = module.get_conv_template("vicuna_v1.1")
        assert not tools
        for message in messages:
            if message["role"] == "system":
                conversation.set_system_message(message["content"])
            else:
                conversation.append_message(conversation.roles[message["role"] == "assistant"], message["content"])
        if generation_prompt:
            conversation.append_message(conversation.roles[1], None)
        return bos + conversation.get_prompt()

    return render


def jinja(text):
    def render(messages, tools, generation_prompt, bos, eos):
        texts, _ = render_jinja_template(
            conversations=[messages], tools=tools, chat_template=text, add_generation_prompt=generation_prompt,
            bos_token=bos, eos_token=eos, date_string="26 Jul 2024")
        return texts[0]

    return render


def marked(text, messages, tools, bos, eos):
    """What TRL's {% generation %} marks."""
    texts, marks = render_jinja_template(
        conversations=[messages], tools=tools, chat_template=text, add_generation_prompt=False,
        return_assistant_tokens_mask=True, bos_token=bos, eos_token=eos)
    return [texts[0][begin:end].strip() for begin, end in marks[0]]


def said(render, messages, tools, bos, eos):
    """Ranges of characters that the assistant says, or None where beginnings of the conversation are written in
    another way than the whole."""
    whole = render(messages, tools, False, bos, eos)
    ranges = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = render(messages[:i], tools, True, bos, eos)
        after = render(messages[:i + 1], tools, False, bos, eos)
        last = i + 1 == len(messages)
        if not last and after.endswith(eos) and not whole.startswith(after):
            after = after[:-len(eos)]  # Phi-3 ends a text, but not a turn, with it
        if not whole.startswith(before) or not whole.startswith(after):
            return None
        ranges.append((len(before), len(after.rstrip("\n"))))
    # Phi-3's end of a text belongs to the turn before it, but not the line break between them.
    if whole.endswith("<|end|>\n" + eos):
        begin, end = ranges[-1] if ranges else (0, 0)
        if end == len(whole):
            ranges[-1:] = [(begin, end - len(eos) - 1), (end - len(eos), end)]
    return ranges


def in_bytes(text, ranges):
    return [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in ranges]


def case(template, messages, tools, generation_prompt):
    render, bos, eos = template["render"], template["bos"], template["eos"]
    out = {"messages": messages, "tools": tools, "generation_prompt": generation_prompt}
    try:
        out["text"] = render(messages, tools, generation_prompt, bos, eos)
    except TemplateError as error:
        out["error"] = str(error)
        return out
    if generation_prompt:
        return out
    ranges = said(render, messages, tools, bos, eos)
    if template["training"]:
        marks = [mark for mark in marked(template["training"], messages, tools, bos, eos) if mark]
        ours = [out["text"][begin:end].strip() for begin, end in ranges]
        if template["name"] == "phi3" and len(ours) > len(marks):
            sys.exit("phi3: TRL marks less")
        assert ours == marks, (template["name"], ours, marks)
    if ranges is not None:
        out["assistant"] = in_bytes(out["text"], ranges)
    return out


def templates(wheels):
    def published(name, source, bos, eos, text, training=None, tools=False):
        return {"name": name, "source": source, "bos": bos, "eos": eos, "text": text, "render": jinja(text),
                "training": training, "tools": tools}

    def of_trl(name, file, model, bos, eos, tools=False):
        training = wheels.read(f"{TRL}{file}_training.jinja") if wheels.has(f"{TRL}{file}_training.jinja") else None
        return published(name, f"{model}, as trl 1.16.0 has it in {file}.jinja", bos, eos, wheels.read(f"{TRL}{file}.jinja"),
                         training, tools)

    def of_axolotl(name, file, bos, eos, tools=False):
        return published(name, f"axolotl 0.19.0, {file}.jinja", bos, eos, wheels.read(f"{AXOLOTL}{file}.jinja"), None, tools)

    chatml = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
              "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
    return [
        published("chatml", "teknium/OpenHermes-2.5-Mistral-7B", "<s>", "<|im_end|>", chatml),
        of_axolotl("chatml", "chatml", "<s>", "<|im_end|>"),
        published("llama2", "meta-llama/Llama-2-7b-chat-hf", "<s>", "</s>", LLAMA2),
        of_trl("llama3", "llama3", "meta-llama/Meta-Llama-3-8B-Instruct", "<|begin_of_text|>", "<|eot_id|>"),
        of_trl("llama3.1", "llama3_1", "meta-llama/Llama-3.1-8B-Instruct", "<|begin_of_text|>", "<|eot_id|>", tools=True),
        of_trl("llama3.1", "llama3_2", "meta-llama/Llama-3.2-1B-Instruct", "<|begin_of_text|>", "<|eot_id|>", tools=True),
        {"name": "vicuna", "source": "lmsys/vicuna-7b-v1.5, as fschat 0.2.36 writes vicuna_v1.1", "bos": "<s>", "eos": "</s>",
         "text": None, "render": vicuna(wheels), "training": None, "tools": False},
        of_axolotl("alpaca", "alpaca", "<s>", "</s>"),
        published("zephyr", "HuggingFaceH4/zephyr-7b-beta", "<s>", "</s>", ZEPHYR),
        of_trl("gemma", "gemma", "google/gemma-7b-it and gemma-2", "<bos>", "<eos>"),
        of_trl("phi3", "phi3", "microsoft/Phi-3-mini-4k-instruct", "<s>", "<|endoftext|>"),
        of_trl("qwen", "qwen2_5", "Qwen/Qwen2.5-7B-Instruct", "", "<|im_end|>", tools=True),
        of_axolotl("mistral", "mistral_v2v3", "<s>", "</s>", tools=True),
    ]


def cases(template):
    chats = [(messages, None) for messages in CHATS] + (TOOL_CHATS if template["tools"] else [])
    for messages, tools in chats:
        for generation_prompt in (False, True):
            yield case(template, messages, tools, generation_prompt)


ADDED = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def tokens(template, file, added, bos, eos):
    """Ids of whole conversations, and what of them the assistant says, by transformers' own rule: from the token of the
    first character to that of the last."""
    if os.path.isdir(os.path.join(TOKENIZERS, file)):
        from transformers import GPT2Tokenizer
        tokenizer = GPT2Tokenizer.from_pretrained(os.path.join(TOKENIZERS, file))
    else:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(TOKENIZERS, file), bos_token=bos, eos_token=eos)
    tokenizer.add_special_tokens({"additional_special_tokens": added})
    tokenizer.chat_template = template["text"]
    ids_of_added = {token: tokenizer.convert_tokens_to_ids(token) for token in added}
    out = []
    for messages in CHATS:
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
            ranges = said(template["render"], messages, None, bos, eos)
        except TemplateError:
            continue
        if ranges is None:
            continue
        encoding = tokenizer(text, add_special_tokens=False)
        assert encoding["input_ids"] == ids
        mask = [0] * len(ids)
        for begin, end in ranges:
            for i in range(encoding.char_to_token(begin), encoding.char_to_token(end - 1) + 1):
                mask[i] = 1
        out.append({"template": template["name"], "tokenizer": file, "bos": bos, "eos": eos, "added": ids_of_added, "messages": messages, "ids": ids,
                    "assistant": mask})
    return out


def write(name, entries):
    """A line for each."""
    with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n]\n")


def main():
    wheels = Wheels(sys.argv[1])
    all_templates = templates(wheels)
    out = []
    for template in all_templates:
        entry = {key: template[key] for key in ("name", "source", "bos", "eos")}
        if template["text"] is not None:
            entry["sha256"] = hashlib.sha256(template["text"].strip().encode()).hexdigest()
        entry["cases"] = list(cases(template))
        out.append(entry)
    write("templates.json", out)
    by_name = {template["name"]: template for template in all_templates}
    write("tokens.json",
          tokens(by_name["chatml"], "llama3.json", ADDED, "<|begin_of_text|>", "<|im_end|>") +
          tokens(by_name["qwen"], "llama3.json", ADDED, "<|begin_of_text|>", "<|im_end|>") +
          tokens(by_name["llama3"], "llama3.json", ADDED, "<|begin_of_text|>", "<|eot_id|>") +
          tokens(by_name["chatml"], "gpt2", [], "<|endoftext|>", "<|endoftext|>") +
          tokens(by_name["zephyr"], "gpt2", [], "<|endoftext|>", "<|endoftext|>") +
          tokens(by_name["llama2"], "llama2.json", [], "<s>", "</s>") +
          tokens(by_name["mistral"], "mistral.json", [], "<s>", "</s>"))


if __name__ == "__main__":
    main()
