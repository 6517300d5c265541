"""Chat templates: conversation -> text, and which characters of it the model is to learn."""

import datetime
import json
import os
import uuid

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from . import UserError
from .sources import decode_utf8


class GenerationBlocks(Extension):
    """{% generation %} ... {% endgeneration %}: the part that the model is to learn. Marked, and the marks taken out."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_mark", [nodes.ContextReference()])
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _mark(self, context, caller):
        mark = context.get("generation_mark", "")
        return mark + caller() + mark


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def template_text(tokenizer):
    path = os.path.join(tokenizer.folder, "chat_template.jinja")
    if os.path.exists(path):
        with open(path, "rb") as file:
            return decode_utf8(file.read(), path, 1)
    template = tokenizer.config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise UserError(f"{tokenizer.folder}/tokenizer_config.json: chat_template is {type(template).__name__}, expected text")
    return template


class ChatTemplate:
    def __init__(self, tokenizer):
        text = template_text(tokenizer)
        if text is None:
            raise UserError(f"{tokenizer.folder} has no chat template (chat_template.jinja, or chat_template in "
                            "tokenizer_config.json), which conversations need; take a chat model's folder, "
                            "or add the template")
        # Sandboxed: a template comes with a model, and models come from strangers.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                    extensions=[GenerationBlocks, loopcontrols])
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self.template = environment.from_string(text)
        except (jinja2.exceptions.TemplateError, RecursionError) as error:
            raise UserError(f"the chat template of {tokenizer.folder} is wrong: {error}") from error
        self.marks_generation = "generation" in text and "endgeneration" in text
        self.special = tokenizer.special

    def render(self, messages, add_generation_prompt=False, mark=""):
        try:
            return self.template.render(messages=messages, tools=None, documents=None, generation_mark=mark,
                                        add_generation_prompt=add_generation_prompt, **self.special)
        except Exception as error:  # a template can fail in any way that Python knows
            reason = str(error) or type(error).__name__
            raise UserError(f"the chat template refuses this conversation: {reason}") from error

    def render_with_spans(self, messages):
        """The text, and the character ranges of the assistant's turns (content and end-of-turn mark)."""
        if self.marks_generation:
            mark = f"\ue000{uuid.uuid4().hex}\ue001"
            parts = self.render(messages, mark=mark).split(mark)
            spans, at = [], 0
            for number, part in enumerate(parts):
                if number % 2 == 1:
                    spans.append((at, at + len(part)))
                at += len(part)
            return "".join(parts), spans
        text = self.render(messages)
        spans = [self._turn_span(messages, number, text)
                 for number, message in enumerate(messages) if message.get("role") == "assistant"]
        return text, spans

    def _turn_span(self, messages, number, text):
        """Where turn `number` lies: behind its generation prompt, up to where the next turn begins."""
        before = self.render(messages[:number], add_generation_prompt=True)
        through = self.render(messages[:number + 1])
        begin = len(before)
        if not text.startswith(before):
            begin = self._begin_by_content(messages, number, text)
        if text.startswith(through):
            end = len(through)
        else:
            end = self._end_by_content(messages[number], through, text, begin)
        while end > begin and text[end - 1].isspace():  # the line end between turns isn't the model's to say
            end -= 1
        return begin, end

    def _begin_by_content(self, messages, number, text):
        """For templates that write a turn without its generation prompt's tail: where the turn's own words begin."""
        content = messages[number].get("content", "").strip()
        plain = self.render(messages[:number]) if number else ""
        begin = text.find(content, len(plain)) if content and text.startswith(plain) else -1
        if begin < 0:
            raise UserError("the chat template renders a conversation's beginning differently from the whole, so the "
                            "assistant's turns can't be told apart; mark them in the template with {% generation %}, "
                            "or set data.train_on_prompt: true")
        return begin

    @staticmethod
    def _end_by_content(message, through, text, begin):
        """For templates that write the last turn differently: find the turn's content and its end mark."""
        content = message["content"].strip() if isinstance(message.get("content"), str) else ""
        tail = through[through.rfind(content) + len(content):].rstrip() if content else ""
        end = text.find(content + tail, begin) if content else -1
        if end < 0:
            raise UserError("the chat template rewrites the assistant's turn, so its end can't be found; mark it in the "
                            "template with {% generation %}, or set data.train_on_prompt: true")
        return end + len(content + tail)


def trained_tokens(encoding, spans):
    """1 for each token that shares a character with a span."""
    trained = [0] * len(encoding.ids)
    number = 0
    for i, (begin, end) in enumerate(encoding.offsets):
        while number < len(spans) and spans[number][1] <= begin:
            number += 1
        if number < len(spans) and end > spans[number][0] and begin < spans[number][1]:
            trained[i] = 1
    return trained
