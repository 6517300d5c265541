"""Tests of tools/prepare_data.py on a tokenizer built here. Where transformers is installed, its ids are the reference."""

import contextlib
import gzip
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools", "prepare_data.py")
sys.path.insert(0, os.path.join(ROOT, "tools"))

import prepare_data  # noqa: E402
from data_prep import UserError  # noqa: E402
from data_prep.chat import ChatTemplate, trained_tokens  # noqa: E402
from data_prep.token_file import HEADER, TokenWriter  # noqa: E402
from data_prep.tokenizer import FolderTokenizer  # noqa: E402

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# Writes the last assistant turn with a thinking block, earlier ones without.
THINKING = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n"
            "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
GENERATION = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
              "<|im_end|>{% endgeneration %}\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}")
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Green."}, {"role": "user", "content": "Another?"},
        {"role": "assistant", "content": "Blue, über all."}]


def save_tokenizer(folder, template=CHATML, bos=False, **config):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end|>", "<|begin|>", "<|im_start|>", "<|im_end|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(["the colour of the sea is green and blue", "a name of another user, system, assistant"],
                                  trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 1)])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    values = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast", **config}
    if template:
        values["chat_template"] = template
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(values, file)


def read_tokens(path):
    """(documents as lists of ids, trained flags per document, header)."""
    with open(path, "rb") as file:
        data = file.read()
    magic, version, width, vocabulary, tokens, documents, at, table, mask, trained, size, source, name = HEADER.unpack_from(data)
    assert (magic, version, size) == (b"ZINFTOKS", 1, len(data))
    ids = np.frombuffer(data, "<u2" if width == 2 else "<u4", tokens, at)
    bounds = np.frombuffer(data, "<u8", documents + 1, table)
    bits = np.unpackbits(np.frombuffer(data, np.uint8, -1, mask), bitorder="little")[:tokens] if mask else np.ones(tokens)
    assert trained == bits.sum()
    cut = lambda values: [values[a:b].astype(int).tolist() for a, b in zip(bounds[:-1], bounds[1:])]
    return cut(ids), cut(bits), {"width": width, "vocabulary": vocabulary, "source": source, "tokenizer": name}


class Case(unittest.TestCase):
    def setUp(self):
        self.holder = tempfile.TemporaryDirectory()
        self.folder = self.holder.name
        self.addCleanup(self.holder.cleanup)
        self.model = self.path("model")
        os.mkdir(self.model)
        save_tokenizer(self.model)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return self.path(name)

    def lines(self, name, *records):
        return self.write(name, "\n".join(json.dumps(record) for record in records) + "\n")

    def tool(self, *arguments, stdin=b""):
        return subprocess.run([sys.executable, TOOL, *arguments], input=stdin, capture_output=True, check=False)

    def build(self, *arguments):
        out = self.path("out.tokens")
        code, text = self.run_build("--out", out, *arguments)
        self.assertEqual(code, 0, text)
        found = read_tokens(out)
        os.unlink(out)
        return found

    def run_build(self, *arguments):
        """In this process, since starting one costs half a second: (exit code, what it said)."""
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            code = prepare_data.main(["build", "--model", self.model, *arguments])
        return code, told.getvalue()

    def refused(self, *arguments):
        code, text = self.run_build("--out", self.path("out.tokens"), *arguments)
        self.assertEqual(code, 2, text)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("out")], [])
        last = text.splitlines()[-1]
        self.assertTrue(last.startswith("error: "), last)
        return last[len("error: "):].replace(self.folder + "/", "")

    def ids(self, text):
        return Tokenizer.from_file(os.path.join(self.model, "tokenizer.json")).encode(text, add_special_tokens=False).ids


class Texts(Case):
    def test_a_text_file_is_one_document(self):
        text = "the sea\n\nis green\r\nüber all\n"
        documents, trained, header = self.build("--source-hash", "5" * 32, "--tokenizer-hash", "7" * 32, self.write("a.txt", text))
        self.assertEqual(documents, [self.ids(text)])
        self.assertEqual(trained, [[1] * len(documents[0])])
        self.assertEqual((header["width"], header["source"], header["tokenizer"]), (2, b"5" * 32, b"7" * 32))

    def test_json_lines_and_patterns(self):
        self.assertEqual(self.build(self.lines("x[1].jsonl", {"text": "sea"}))[0], [self.ids("sea")])
        self.lines("b2.jsonl", {"text": "blue"}, {"text": ""}, {"text": "the end", "other": 3})
        self.write("b1.jsonl", b'{"text": "green"}\n\n')
        documents, _, _ = self.build(self.path("b*.jsonl"))
        self.assertEqual(documents, [self.ids("green"), self.ids("blue"), self.ids("the end")])

    def test_compressed_and_json_list(self):
        with gzip.open(self.path("c.jsonl.gz"), "wt") as file:
            file.write('{"text": "green"}\n')
        self.write("c.json", json.dumps([{"text": "blue"}, {"text": "sea"}]))
        documents, _, _ = self.build(self.path("c.jsonl.gz"), self.path("c.json"))
        self.assertEqual(documents, [self.ids("green"), self.ids("blue"), self.ids("sea")])
        with gzip.open(self.path("C.JSONL.GZ"), "wt") as file:
            file.write('{"text": "green"}\n')
        self.write("D.JSON", json.dumps([{"text": "blue"}]))
        documents, _, _ = self.build(self.path("C.JSONL.GZ"), self.path("D.JSON"))
        self.assertEqual(documents, [self.ids("green"), self.ids("blue")])

    def test_end_token_only_when_asked(self):
        documents, _, _ = self.build("--append-eos", self.lines("a.jsonl", {"text": "sea"}, {"text": "sea<|end|>"}))
        self.assertEqual(documents, [self.ids("sea") + [0]] * 2)

    def test_begin_token_as_the_tokenizer_says(self):
        save_tokenizer(self.model, bos=True)
        path = self.write("a.txt", "sea")
        self.assertEqual(self.build(path)[0], [[1] + self.ids("sea")])
        save_tokenizer(self.model, bos=True, tokenizer_class="LlamaTokenizerFast", add_bos_token=False, add_eos_token=True)
        self.assertEqual(self.build(path)[0], [self.ids("sea") + [0]])

    @unittest.skipUnless(importlib.util.find_spec("pyarrow"), "pyarrow is not installed")
    def test_parquet(self):
        import pyarrow
        import pyarrow.parquet
        pyarrow.parquet.write_table(pyarrow.table({"text": ["green", "blue"]}), self.path("a.parquet"))
        self.assertEqual(self.build(self.path("a.parquet"))[0], [self.ids("green"), self.ids("blue")])
        turns = [[{"from": "human", "value": "sea"}, {"from": "gpt", "value": "blue"}]]
        pyarrow.parquet.write_table(pyarrow.table({"conversations": turns}), self.path("b.parquet"))
        self.assertEqual(sum(self.build(self.path("b.parquet"))[1][0]), len(self.ids("blue<|im_end|>")))
        self.write("c.parquet", "no parquet")
        self.assertIn("c.parquet: ", self.refused(self.path("c.parquet")))

    def test_long_texts_are_cut_where_tokens_stay_the_same(self):
        from data_prep import sources
        text = "".join(f"the sea {i}\n\nis green.\n and   blue\n" for i in range(3000))
        before, sources.TEXT_PIECE = sources.TEXT_PIECE, 1000
        try:
            pieces = [piece for _, piece, _ in sources.text_pieces(self.write("a.txt", text))]
        finally:
            sources.TEXT_PIECE = before
        self.assertGreater(len(pieces), 50)
        self.assertEqual("".join(pieces), text)
        self.assertEqual(sum((self.ids(piece) for piece in pieces), []), self.ids(text))
        parts = sources.split_text(text, 1000)
        self.assertGreater(len(parts), 50)
        self.assertEqual("".join(parts), text)
        self.assertEqual(sum((self.ids(part) for part in parts), []), self.ids(text))
        self.assertEqual(sources.split_text("x" * 3000, 1000), ["x" * 3000])


class Conversations(Case):
    def pieces(self, documents, trained):
        """The learnt parts of the first document, as text."""
        tokenizer = FolderTokenizer(self.model)
        parts, current = [], []
        for token, flag in [*zip(documents[0], trained[0]), (0, 0)]:
            if flag:
                current.append(token)
            elif current:
                parts.append(tokenizer.decode(current))
                current = []
        return parts

    def test_only_assistant_turns_are_learnt(self):
        documents, trained, _ = self.build(self.lines("a.jsonl", {"messages": TALK}))
        self.assertEqual(FolderTokenizer(self.model).decode(documents[0]),
                         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nName a colour.<|im_end|>\n"
                         "<|im_start|>assistant\nGreen.<|im_end|>\n<|im_start|>user\nAnother?<|im_end|>\n"
                         "<|im_start|>assistant\nBlue, über all.<|im_end|>\n")
        self.assertEqual(self.pieces(documents, trained), ["Green.<|im_end|>", "Blue, über all.<|im_end|>"])

    def test_all_turns_when_asked(self):
        documents, trained, _ = self.build("--train-on-prompt", self.lines("a.jsonl", {"messages": TALK}))
        self.assertEqual(trained, [[1] * len(documents[0])])

    def test_generation_blocks_decide(self):
        save_tokenizer(self.model, GENERATION)
        self.assertEqual(self.pieces(*self.build(self.lines("a.jsonl", {"messages": TALK}))[:2]),
                         ["Green.<|im_end|>", "Blue, über all.<|im_end|>"])

    def test_template_that_writes_the_last_turn_differently(self):
        save_tokenizer(self.model, THINKING)
        self.assertEqual(self.pieces(*self.build(self.lines("a.jsonl", {"messages": TALK}))[:2]),
                         ["Green.<|im_end|>", "<think>\n\n</think>\n\nBlue, über all.<|im_end|>"])

    def test_assistant_first(self):
        talk = [{"role": "assistant", "content": "Green."}, {"role": "user", "content": "sea"}]
        self.assertEqual(self.pieces(*self.build(self.lines("a.jsonl", {"messages": talk}))[:2]), ["Green.<|im_end|>"])

    def test_the_formats_give_the_same_tokens(self):
        chat = [{"role": "user", "content": "Name it.\n\nsea"}, {"role": "assistant", "content": "blue"}]
        same = [self.build(self.lines("a.jsonl", record))[:2] for record in (
            {"messages": chat},
            {"conversations": [{"from": "human", "value": "Name it.\n\nsea"}, {"from": "gpt", "value": "blue"}]},
            {"conversations": chat},
            {"instruction": "Name it.", "input": "sea", "output": "blue"},
            {"instruction": "Name it.\n\nsea", "input": None, "output": "blue", "system": None},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Name it.\n\nsea"}]}, chat[1]]})]
        for other in same[1:]:
            self.assertEqual(other, same[0])

    def test_alpaca_with_system_and_history(self):
        record = {"system": "Be brief.", "history": [["Name a colour.", "Green."]], "instruction": "Another?", "input": "",
                  "output": "Blue, über all."}
        self.assertEqual(self.build(self.lines("a.jsonl", record))[:2], self.build(self.lines("b.jsonl", {"messages": TALK}))[:2])

    def test_template_file_wins_over_config(self):
        self.write("model/chat_template.jinja", "{% for m in messages %}[{{ m.role }}] {{ m.content }}<|end|>{% endfor %}"
                   "{% if add_generation_prompt %}[assistant] {% endif %}")
        documents, trained, _ = self.build(self.lines("a.jsonl", {"messages": TALK[1:3]}))
        self.assertEqual(FolderTokenizer(self.model).decode(documents[0]), "[user] Name a colour.<|end|>[assistant] Green.<|end|>")
        self.assertEqual(self.pieces(documents, trained)[0].strip(), "Green.<|end|>")

    def test_templates_are_sandboxed(self):
        save_tokenizer(self.model, "{{ messages.__class__.__mro__ }}{{ cycler.__init__.__globals__.os.system('touch hacked') }}")
        self.assertIn("the chat template refuses this conversation", self.refused(self.lines("a.jsonl", {"messages": TALK})))
        save_tokenizer(self.model, "{% set _ = messages.append(1) %}")
        self.assertIn("refuses this conversation", self.refused(self.lines("a.jsonl", {"messages": TALK})))


class Errors(Case):
    def test_wrong_encoding_names_file_and_line(self):
        self.assertEqual(self.refused(self.write("a.txt", b"one\ntwo\nth\xe9 end\n")),
                         "a.txt:3: byte 0xe9 is not UTF-8; convert the file (iconv -f latin1 -t utf-8)")
        self.assertEqual(self.refused(self.write("a.jsonl", b'{"text": "one"}\n{"text": "\xff"}\n')),
                         "a.jsonl:2: byte 0xff is not UTF-8; convert the file (iconv -f latin1 -t utf-8)")

    def test_empty_inputs(self):
        self.assertEqual(self.refused(self.write("a.txt", "")), "a.txt is empty: expected text")
        self.assertEqual(self.refused(self.write("a.txt", " \n\n")), "a.txt is empty: expected text")
        self.assertEqual(self.refused(self.write("a.jsonl", "\n")), "a.jsonl is empty: expected at least one record")
        self.assertEqual(self.refused(self.lines("a.jsonl", {"text": " "})), "a.jsonl: every document is empty")

    def test_wrong_records(self):
        self.assertIn("a.jsonl:2: not JSON", self.refused(self.write("a.jsonl", '{"text": "one"}\n{"text": \n')))
        self.assertEqual(self.refused(self.lines("a.jsonl", {"body": "x", "id": 1})),
                         "a.jsonl:1: expected a field text, messages, conversations or instruction, found body, id")
        self.assertEqual(self.refused(self.lines("a.jsonl", {"text": "x"}, {"txt": "x"})),
                         "a.jsonl:2: expected a field 'text', found txt")
        self.assertEqual(self.refused(self.lines("a.jsonl", {"text": 5})), "a.jsonl:1: field 'text' is int, expected str")
        self.assertEqual(self.refused(self.lines("a.jsonl", [1])), "a.jsonl:1: expected an object, found list")
        self.assertIn("a.jsonl:1: unknown role 'robot'", self.refused(self.lines("a.jsonl", {"messages": [{"role": "robot", "content": ""}]})))
        self.assertIn("a.jsonl:1: the conversation is empty", self.refused(self.lines("a.jsonl", {"messages": []})))
        self.assertEqual(self.refused("--format", "alpaca", self.lines("a.jsonl", {"text": "x"})),
                         "a.jsonl:1: expected a field 'instruction', found text")

    def test_missing_things(self):
        self.assertEqual(self.refused(self.path("none.txt")), "none.txt does not exist")
        self.assertEqual(self.refused(self.path("*.none")), "no file matches *.none")
        save_tokenizer(self.model, template=None)
        self.assertIn("a.jsonl:1: model has no chat template", self.refused(self.lines("a.jsonl", {"messages": TALK})))
        os.unlink(self.path("model/tokenizer.json"))
        self.assertIn("model has no tokenizer.json", self.refused(self.write("b.txt", "x")))
        self.write("model/tokenizer.json", "{")
        self.assertIn("can't read model/tokenizer.json", self.refused(self.write("b.txt", "x")))

    def test_hostile_records(self):
        deep = "[" * 100000 + "]" * 100000
        self.assertEqual(self.refused(self.write("a.jsonl", f'{{"text": {deep}}}\n')), "a.jsonl:1: JSON that is nested too deeply")
        self.assertEqual(self.refused(self.write("a.json", deep)), "a.json: JSON that is nested too deeply")
        self.assertEqual(self.refused(self.write("a.jsonl", '{"text": "one"}\n{"text": "a \\ud800 b"}\n')),
                         "a.jsonl:2: \\ud800 is half a character (a lone surrogate); its other half is missing")
        self.assertEqual(self.build(self.write("a.jsonl", '{"text": "\\ud83d\\ude00"}\n'))[0], [self.ids("\U0001f600")])
        for content in ([{"type": "text", "text": 5}], {"text": "x"}, None):
            self.assertEqual(self.refused(self.lines("a.jsonl", {"messages": [{"role": "user", "content": content}]})),
                             "a.jsonl:1: a message of 'user' has no text in 'content'")
        record = {"instruction": "x", "output": "y", "history": 5}
        self.assertEqual(self.refused(self.lines("a.jsonl", record)), "a.jsonl:1: field 'history' is int, expected list")

    def test_damaged_archives(self):
        whole = gzip.compress(b"one two three " * 1000)
        for name, data in (("no.txt.gz", b"plain text"), ("cut.txt.gz", whole[:-20]), ("bad.txt.gz", whole[:20] + b"\xff" * 20 + whole[40:])):
            text = self.refused(self.write(name, data))
            self.assertTrue(text.startswith(f"{name} can't be unpacked: "), text)
            self.assertTrue(text.endswith("; it is damaged or no gzip file"), text)

    def test_hostile_tokenizers(self):
        text, talk = self.write("b.txt", "x"), self.lines("a.jsonl", {"messages": TALK})
        for config, reason in (("[]", "tokenizer_config.json is list, expected an object"),
                               ('{"added_tokens_decoder": {"0": 5}}', "added_tokens_decoder is not"),
                               ('{"added_tokens_decoder": [1]}', "added_tokens_decoder is not")):
            self.write("model/tokenizer_config.json", config)
            self.assertIn(reason, self.refused(text))
        for template, reason in ((5, "chat_template is int, expected text"), ([{"name": "default"}, 5], "has no chat template"),
                                 ("{{ 1 / 0 }}", "refuses this conversation: division by zero"),
                                 ("{% for i in range(999999999) %}{% endfor %}", "refuses this conversation: Range too big"),
                                 ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "refuses this conversation: maximum recursion depth")):
            save_tokenizer(self.model, template=None, chat_template=template)
            self.assertIn(reason, self.refused(talk))
        self.write("model/chat_template.jinja", b"{{ '\xff' }}")
        self.assertIn("model/chat_template.jinja:1: byte 0xff is not UTF-8", self.refused(talk))
        os.unlink(self.path("model/tokenizer.json"))
        self.write("model/vocab.json", "[1]")
        self.write("model/merges.txt", "a\n")
        self.assertIn("can't read model/vocab.json and model/merges.txt", self.refused(text))

    def test_writer_refuses_what_does_not_fit(self):
        with self.assertRaisesRegex(UserError, "a vocabulary of 100000 does not fit 16-bit tokens"):
            TokenWriter(self.path("x"), 100000, 2)
        writer = TokenWriter(self.path("x"), 100000)
        writer.add([70000])
        with self.assertRaisesRegex(UserError, "token 2 has id 100000, outside the vocabulary of 100000"):
            writer.add([5, 100000])
        writer.finish()
        self.assertEqual(read_tokens(self.path("x"))[0], [[70000]])


class Interrupted(Case):
    def test_a_stop_leaves_nothing_behind(self):
        with open(self.path("long.jsonl"), "w", encoding="utf-8") as file:
            for _ in range(200000):
                file.write('{"text": "the sea is green and blue"}\n')
        os.mkdir(self.path("out"))
        child = subprocess.Popen([sys.executable, TOOL, "build", "--model", self.model, "--out", self.path("out/t"), self.path("long.jsonl")],
                                 stderr=subprocess.DEVNULL)
        while not os.listdir(self.path("out")):
            self.assertIsNone(child.poll())
            time.sleep(0.01)
        child.terminate()
        self.assertEqual(child.wait(), 143)
        self.assertEqual(os.listdir(self.path("out")), [])


class Masks(Case):
    def test_masks_over_many_documents(self):
        writer = TokenWriter(self.path("x"), 100)
        rng = np.random.default_rng(1)
        masks = [rng.integers(0, 2, n).tolist() for n in (3, 0, 8, 1, 30, 7, 16, 5)]
        for mask in masks:
            writer.add(list(range(len(mask))), mask)
        writer.finish()
        self.assertEqual(read_tokens(self.path("x"))[1], masks)


class Commands(Case):
    def test_exit_codes(self):
        self.assertEqual(self.tool("build", "--model", self.model, "--out", self.path("o"), self.write("a.txt", "sea")).returncode, 0)
        self.assertEqual(self.tool("build", "--model", self.model, "--out", self.path("none/o"), self.path("a.txt")).returncode, 1)
        done = self.tool("build", "--model", self.model, "--out", self.path("o"), self.path("none"))
        self.assertEqual((done.returncode, done.stderr.decode()), (2, f"error: {self.path('none')} does not exist\n"))

    def test_encode_decode_show(self):
        ids = json.loads(self.tool("encode", "--model", self.model, stdin="the sea über".encode()).stdout)
        self.assertEqual(ids, self.ids("the sea über"))
        self.assertEqual(self.tool("decode", "--model", self.model, stdin=json.dumps(ids).encode()).stdout.decode(), "the sea über")
        a, b, c = self.ids("sea")[0], self.ids("<|im_end|>")[0], self.ids("<|im_start|>")[0]
        shown = self.tool("show", "--model", self.model,
                          stdin=json.dumps({"ids": [c, a, b], "targets": [-100, b, c]}).encode()).stdout.decode()
        text = FolderTokenizer(self.model).decode([c, a])
        self.assertEqual(shown, f'read      2 tokens  {json.dumps(text)}\nlearn     2 tokens  "<|im_end|><|im_start|>"\n')


@unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
class Reference(Case):
    def loaded(self):
        from transformers import PreTrainedTokenizerFast
        return PreTrainedTokenizerFast.from_pretrained(self.model)

    def test_texts(self):
        for bos in (False, True):
            save_tokenizer(self.model, bos=bos)
            for text in ("the sea\n\n is green", "über", "<|end|>x"):
                self.assertEqual(FolderTokenizer(self.model).encode_texts([text])[0], self.loaded()(text)["input_ids"])

    def test_conversations(self):
        for template in (CHATML, GENERATION, THINKING):
            save_tokenizer(self.model, template, bos=True)
            text, _ = ChatTemplate(FolderTokenizer(self.model)).render_with_spans(TALK)
            self.assertEqual(text, self.loaded().apply_chat_template(TALK, tokenize=False))
            encoded = self.loaded().apply_chat_template(TALK, return_dict=True)["input_ids"]
            self.assertEqual(FolderTokenizer(self.model).encode_exactly([text])[0].ids, encoded)

    def test_assistant_masks(self):
        save_tokenizer(self.model, GENERATION)
        reference = self.loaded().apply_chat_template(TALK, return_dict=True, return_assistant_tokens_mask=True)
        tokenizer = FolderTokenizer(self.model)
        text, spans = ChatTemplate(tokenizer).render_with_spans(TALK)
        self.assertEqual(trained_tokens(tokenizer.encode_exactly([text])[0], spans), reference["assistant_masks"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
