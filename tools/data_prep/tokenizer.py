"""The tokenizer of a Hugging Face model folder, with the rules that transformers applies around it."""

import json
import os

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from . import UserError

# The rust library's own threads encode a batch; the environment variable only silences its fork warning.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"can't read {path}: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is {type(value).__name__}, expected an object")
    return value


def optional_json(folder, name):
    path = os.path.join(folder, name)
    return read_json(path) if os.path.exists(path) else {}


def load_library_tokenizer(folder):
    path = os.path.join(folder, "tokenizer.json")
    if os.path.exists(path):
        try:
            return Tokenizer.from_file(path)
        except Exception as error:  # the library raises plain Exception
            raise UserError(f"can't read {path}: {error}") from error
    vocabulary, merges = os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt")
    if os.path.exists(vocabulary) and os.path.exists(merges):
        try:
            tokenizer = Tokenizer(models.BPE.from_file(vocabulary, merges))
        except Exception as error:
            raise UserError(f"can't read {vocabulary} and {merges}: {error}") from error
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
    raise UserError(f"{folder} has no tokenizer.json (nor vocab.json and merges.txt); "
                    "save the tokenizer with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)")


class FolderTokenizer:
    def __init__(self, folder):
        self.folder = folder
        self.library = load_library_tokenizer(folder)
        self.library.no_padding()
        self.library.no_truncation()
        self.config = optional_json(folder, "tokenizer_config.json")
        self.special = self._special_tokens()
        self._add_missing_special_tokens()
        vocabulary = self.library.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise UserError(f"the tokenizer in {folder} has no vocabulary")
        self.vocabulary = max(vocabulary.values()) + 1
        self.prefix, self.suffix = self._added_around_text()
        self.byte_level = "ByteLevel" in json.dumps(json.loads(self.library.to_str()).get("pre_tokenizer"))

    def _special_tokens(self):
        named = {**optional_json(self.folder, "special_tokens_map.json"), **self.config}
        tokens = {}
        for name in SPECIAL:
            value = named.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                tokens[name] = value
        return tokens

    def _add_missing_special_tokens(self):
        added = self.config.get("added_tokens_decoder") or {}
        entries = list(added.values()) if isinstance(added, dict) else [None]
        if not all(isinstance(entry, dict) and isinstance(entry.get("content"), str) for entry in entries):
            raise UserError(f"{self.folder}/tokenizer_config.json: added_tokens_decoder is not {{id: {{\"content\": text}}}}")
        missing = {entry["content"] for entry in entries}
        missing |= set(self.special.values())
        missing = [text for text in sorted(missing) if self.library.token_to_id(text) is None]
        # Without tokenizer.json, special tokens are ordinary entries of vocab.json until marked.
        if not os.path.exists(os.path.join(self.folder, "tokenizer.json")):
            self.library.add_special_tokens([AddedToken(text, special=True) for text in self.special.values()])
        elif missing:
            raise UserError(f"{self.folder}: special token {missing[0]!r} of tokenizer_config.json "
                            "is not in tokenizer.json; the two don't belong together")

    def id_of(self, name):
        """Id of e.g. eos_token, or None."""
        return self.library.token_to_id(self.special[name]) if name in self.special else None

    def _added_around_text(self):
        """Ids that the post-processor puts before and after a text; then what tokenizer_config.json says of them."""
        plain = self.library.encode("a", add_special_tokens=False).ids
        full = self.library.encode("a", add_special_tokens=True).ids
        at = next((i for i in range(len(full) - len(plain) + 1) if full[i:i + len(plain)] == plain), 0)
        prefix, suffix = full[:at], full[at + len(plain):]
        # transformers rebuilds the post-processor from these two flags for the Llama-like tokenizers only.
        if str(self.config.get("tokenizer_class", "")).startswith(("Llama", "CodeLlama", "Gemma", "Cohere")):
            for flag, name, ids in (("add_bos_token", "bos_token", prefix), ("add_eos_token", "eos_token", suffix)):
                wanted, token = self.config.get(flag), self.id_of(name)
                if wanted is True and token is not None and token not in ids:
                    ids.append(token)
                elif wanted is False and token in ids:
                    ids.remove(token)
        return prefix, suffix

    def encode_texts(self, texts):
        """Ids of each text as transformers gives them, special tokens included."""
        found = self.library.encode_batch_fast(texts, add_special_tokens=False)
        return [self.prefix + encoding.ids + self.suffix for encoding in found]

    def encode_exactly(self, texts):
        """Encodings (ids and character offsets) of texts that already hold their special tokens."""
        return self.library.encode_batch(texts, add_special_tokens=False)

    def decode(self, ids, skip_special=False):
        return self.library.decode(list(ids), skip_special_tokens=skip_special)
