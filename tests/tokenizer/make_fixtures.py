"""Writes the fixtures of tokenizer/tokenizer_test.cc: small tokenizers of each kind, and what the libraries that
Tercio must agree with say about a list of nasty texts. Run by hand, once; names of fixtures make only those:

    python3 -m venv ~/tokenizer-venv && ~/tokenizer-venv/bin/pip install transformers tokenizers sentencepiece protobuf
    ~/tokenizer-venv/bin/python tests/tokenizer/make_fixtures.py [FIXTURE...]

fixtures/gpt2/            vocab.json, merges.txt: byte-level BPE; ids by transformers' GPT2Tokenizer
fixtures/roberta.json     byte-level BPE, a space put before the text, <mask> takes the space before it
fixtures/llama3.json      byte-level BPE with Llama 3's words, ignore_merges, special tokens
fixtures/bert.json        WordPiece, lower case          fixtures/bert_cased/vocab.txt   WordPiece, cased
fixtures/unigram.model    SentencePiece unigram, nmt_nfkc, user-defined symbols (its rules are cut to what the
                          texts need: the whole table has 240 kB)
fixtures/bytes.model      SentencePiece BPE, byte fallback, no change to white space (as Llama 2)
fixtures/llama2.json      the pieces of bytes.model as a tokenizer.json, a space put before each text, special tokens
fixtures/no_prefix.json       the same without that space, and tokens that are not special
fixtures/llama2_spaces.json   llama2.json with added tokens that are looked for in normalized text, hold spaces, or take those
                          around them
fixtures/mistral.json     the pieces with Metaspace instead of a normalizer: a space only before the first word, nothing split
fixtures/metaspace.json   the same with a space before every part, split at every space
fixtures/suffix.model     SentencePiece BPE, unknown characters, space behind words, unused pieces
fixtures/expected.json    {"texts": [...], "ids": {fixture: [[id, ...], ...]}, "decoded": {fixture: [text or null where
                          it is the text itself, ...]}, "special": {fixture: {role: id}}}
"""

import io
import json
import os
import random
import struct
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, GPT2Tokenizer

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
SEED = 20240607

WORDS = """the of and to in that is was for it with as his on be at by this had not are but from or have an they which
one you were her all she there would their we him been has when who will more no if out so said what up its about into
than them can only other new some could time these two may then do first any my now such like our over man me even most
made after also did many before must through back years where much your way well down should because each just those
people how too little state good very make world still own see men work long get here between both life being under
never day same another know while last might us great old year off come since against go came right used take three
don't can't I'm you've we'll she'd they're 1984 2024 3.14159 tokenizer tokens training gradient pipeline tensor
parallel schedule checkpoint résumé naïve façade Zürich Straße Ελλάδα κόσμος Москва привет 東京 日本語 中文 한국어""".split()

TEXTS = [
    "", " ", "  ", "\n", "\t", "\r\n", "\n\n\n", " \n ", "a", " a", "a ", "  a  b  ", "Hello, world!", "hello world",
    "don't can't won't I'M YOU'LL they'VE 'S 's ' s 'ſ 'll've", "it's'it''s'", "x\ty\tz\n\nw\n  v\n\t u", "a\r\n\r\nb\rc",
    "1", "12", "123", "1234", "1234567890123", "3.14159e-10 1,000,000 ½ Ⅷ ٣٤٥ ²³", "a1b2c3 4d5e", "   leading and trailing   ",
    "tabs\t\t\tand   spaces \t \t mixed", "trailing newline\n", "spaces before newline   \n   next", "!!!???...---",
    "(a) [b] {c} <d> \"e\" 'f' `g`", "foo_bar__baz--qux==quux", "https://example.org/a?b=c&d=e#f", "user@example.org",
    "日本語のテキスト、中文文本。한국어 텍스트", "漢字と kanji と かな", "中文\n\n第二行。\n第三行", "𠀀𪜀鿿豈", "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 ✊ ❤️ 🇩🇪",
    "e\u0301 é a\u0308\u0304 ạ\u0302 q\u0307\u0323 q\u0323\u0307", "Ĳ ﬁ ﬂ ﬀ ½ ① ㍿ ｱｲｳ ＡＢＣ １２３", "İstanbul IŞIK ıi ẞß ǅ Σίσυφος ΌΣΟΣ",
    "Ångström ÅNGSTRÖM naïve CAFÉ Dvořák Łódź", "שָׁלוֹם עולם", "مرحبا بالعالم", "हिन्दी में पाठ क्षत्रिय", "ภาษาไทยไม่มีช่องว่าง", "Việt Nam tiếng Việt",
    "zero\u200bwidth\u200djoin\ufeffbom \u00adsoft", "nbsp\u00a0here\u2003em\u3000ideographic\u2028line\u2029para\u0085nel", "a\u0000b\u0001c\u007fd\ufffde",
    "\u2581already \u2581\u2581marked\u2581", "<|endoftext|>", "a<|endoftext|>b <|endoftext|> c", "<|endoftext|><|endoftext|>", "<|endoftext", "|endoftext|>",
    "<|begin_of_text|>hi<|end_of_text|>\n<|eot|> x<|eot|>", "the <mask> of\n <mask>and<mask>  <mask> .", "</s> <s> <pad> <unk> <0x41>", "[CLS] a [MASK] b [SEP] [PAD] [UNK] [mask] [ MASK ]",
    "<user> says <user>hi</user> <<user>>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ababababababab bababababab", "....................", "---- ---- ----",
    "a" * 99 + " " + "b" * 100 + " " + "c" * 101, "thethethethe" * 20, "x" * 3 + " " * 70 + "y" + "\n" * 70 + "z", "=" * 130 + "\n", "0" * 200, "🙂" * 40,
    "The quick brown fox jumps over the lazy dog. 1234 tokens, they're training!", "résumé naïve façade Zürich Straße Москва 東京",
    "don't do not ca n't I 'm we 've they 're it 's , . ! ? ' x ' y", "\U0010fffd\ue000 private", "ⅣⅤ Ǆ ŉ ͅ ᾳ", "가각 ㄱㅏ 각",
]


def corpus():
    """A text that each run makes anew, the same."""
    generator = random.Random(SEED)
    lines = []
    for _ in range(1500):
        words = [generator.choice(WORDS[:generator.choice([20, 60, len(WORDS)])]) for _ in range(generator.randint(3, 14))]
        line = " ".join(words)
        if generator.random() < 0.5:
            line = line[0].upper() + line[1:]
        lines.append(line + generator.choice([".", ".", "!", "?", ",", ";", "...", ""]))
    return lines


def more_texts():
    """Random characters of all sorts, one after the other."""
    generator = random.Random(SEED + 1)
    kinds = [
        lambda: generator.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"), lambda: generator.choice("0123456789"),
        lambda: " ", lambda: generator.choice(" \t\n\r\v\f\u00a0\u3000"), lambda: generator.choice("'\"!?.,;:-_()[]{}<>|/\\@#$%^&*+=~`"),
        lambda: generator.choice(["'s", "'LL", "'re", "\r\n", "<|endoftext|>", "<|eot|>", "[MASK]", "<mask>", "<user>", " the"]),
        lambda: chr(generator.randint(0xC0, 0x24F)), lambda: chr(generator.randint(0x300, 0x36F)), lambda: chr(generator.randint(0x370, 0x52F)),
        lambda: chr(generator.randint(0x4E00, 0x9FFF)), lambda: chr(generator.randint(0x1F300, 0x1F6FF)), lambda: generator.choice(WORDS),
        lambda: chr(generator.choice([generator.randint(0x600, 0x1FFF), generator.randint(0x2000, 0x2FFF), generator.randint(0xAC00, 0xD7A3)])),
    ]
    return ["".join(generator.choice(kinds)() for _ in range(generator.randint(1, 30))) for _ in range(50)]


def train_bpe(pre_tokenizer, size, special):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def make_gpt2(folder):
    tokenizer = train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), 700, ["<|endoftext|>"])
    os.makedirs(folder, exist_ok=True)
    tokenizer.model.save(folder)
    return GPT2Tokenizer.from_pretrained(folder)


def make_roberta(path):
    special = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    tokenizer = train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), 500, special)
    tokenizer.add_tokens(["resnet", AddedToken("lstm", rstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(path, pretty=False)
    return tokenizer


def make_llama3(path):
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    cut = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trained = train_bpe(cut, 650, [])
    state = json.loads(trained.to_str())
    state["model"]["ignore_merges"] = True
    # A token that no merge makes: only ignore_merges finds it.
    state["model"]["vocab"]["Ġzzz"] = len(state["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot|>"])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[
            ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))])])
    tokenizer.save(path, pretty=False)
    return tokenizer


def make_bert(path):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    tokenizer.add_tokens([AddedToken("Überraschung", normalized=True)])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(path, pretty=False)
    return tokenizer


def make_bert_cased(folder):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as file:
        for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1]):
            file.write(token + "\n")
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"do_lower_case": False}, file)
    return BertTokenizer.from_pretrained(folder)


def train_sentence_piece(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model, minloglevel=2, num_threads=1, **options)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    # What training was told is no part of the tokenizer, and may hold paths.
    proto.trainer_spec.ClearField("input")
    proto.trainer_spec.ClearField("model_prefix")
    return proto


def rules_for(charsmap, texts):
    """The rules of a compiled table that apply somewhere in the texts, compiled again: a trie with one unit for each
    state, in which children are found at offset xor byte, as in the library's table."""
    size = struct.unpack_from("<I", charsmap)[0]
    units = struct.unpack_from(f"<{size // 4}I", charsmap, 4)
    strings = charsmap[4 + size:]

    def offset(unit):
        return (unit >> 10) << ((unit & 512) >> 6)

    rules = {}
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        for begin in range(len(data)):
            place = offset(units[0])
            for end in range(begin, len(data)):
                place ^= data[end]
                unit = units[place]
                if unit & 0x800000FF != data[end]:
                    break
                place ^= offset(unit)
                if unit >> 8 & 1:
                    value = units[place] & 0x7FFFFFFF
                    rules[data[begin:end + 1]] = strings[value:strings.index(b"\0", value)]
    return compile_rules(rules)


def compile_rules(rules):
    replacements = b""
    places = {}
    for replacement in sorted(set(rules.values())):
        places[replacement] = len(replacements)
        replacements += replacement + b"\0"
    units = [0] * 65536
    taken = [False] * 65536
    taken[0] = True

    def place_children(parent, prefix, label):
        keys = {key[len(prefix)] for key in rules if len(key) > len(prefix) and key.startswith(prefix)}
        value = prefix in rules
        base = 1
        while taken[base] or any(taken[base ^ key] for key in keys):
            base += 1
        relative = base ^ parent
        assert relative < 1 << 21
        units[parent] = label | (relative << 10) | (256 if value else 0)
        taken[base] = True
        if value:
            units[base] = places[rules[prefix]] | 1 << 31
        for key in keys:
            taken[base ^ key] = True
        for key in sorted(keys):
            place_children(base ^ key, prefix + bytes([key]), key)

    place_children(0, b"", 0)
    count = (max(i for i in range(65536) if taken[i]) | 255) + 1
    trie = struct.pack(f"<{count}I", *units[:count])
    return struct.pack("<I", len(trie)) + trie + replacements


def make_unigram(path, texts):
    proto = train_sentence_piece(
        vocab_size=360, model_type="unigram", character_coverage=0.995, user_defined_symbols=["<user>", "ab", "\u2581---"],
        pad_id=3)
    proto.normalizer_spec.precompiled_charsmap = rules_for(proto.normalizer_spec.precompiled_charsmap, texts + corpus())
    return save_sentence_piece(proto, path)


def make_bytes(path):
    return save_sentence_piece(train_sentence_piece(
        vocab_size=600, model_type="bpe", byte_fallback=True, normalization_rule_name="identity", character_coverage=0.99,
        remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True), path)


def make_pieces(path, prefix, added, metaspace=None):
    """The pieces of bytes.model and all merges that make them, in the order of their scores."""
    proto = sentencepiece_model_pb2.ModelProto()
    with open(os.path.join(FOLDER, "bytes.model"), "rb") as file:
        proto.ParseFromString(file.read())
    normal = {piece.piece for piece in proto.pieces if piece.type == piece.NORMAL}
    merges = []
    for piece in sorted(proto.pieces, key=lambda piece: -piece.score):
        halves = [(piece.piece[:at], piece.piece[at:]) for at in range(1, len(piece.piece))]
        merges += [(a, b) for a, b in halves if piece.piece in normal and a in normal and b in normal]
    tokenizer = Tokenizer(models.BPE({piece.piece: i for i, piece in enumerate(proto.pieces)}, merges,
                                     unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "\u2581")
    if metaspace is None:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prefix else spaces
    else:
        tokenizer.pre_tokenizer = metaspace
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()] +
        ([decoders.Strip(" ", 1, 0)] if prefix else []))
    for token, special, *flags in added:
        token = AddedToken(token, special=special, **{"normalized": False, **dict.fromkeys(flags, True)})
        tokenizer.add_special_tokens([token]) if special else tokenizer.add_tokens([token])
    tokenizer.save(path, pretty=False)
    return tokenizer


def make_llama2(path):
    return make_pieces(path, True, [("<unk>", True), ("<s>", True), ("</s>", True), ("<|eot|>", True)])


def make_no_prefix(path):
    return make_pieces(path, False, [("<user>", False), ("\n\n", False), ("[MASK]", True)])


# Every flag, and tokens with spaces.
FLAGGED = [("<unk>", True, "normalized"), ("<s>", True, "normalized"), ("</s>", True, "normalized"),
           ("<mask>", True, "lstrip"), ("[MASK]", True, "normalized", "lstrip", "rstrip"),
           ("<|endoftext|>", False, "rstrip"), ("says", False, "normalized", "lstrip"), ("of the", False),
           ("<user>hi", False, "normalized", "rstrip"), ("\u2581\u2581mark", False, "normalized")]


def make_llama2_spaces(path):
    return make_pieces(path, True, FLAGGED)


def make_mistral(path):
    return make_pieces(path, True, FLAGGED, pre_tokenizers.Metaspace(prepend_scheme="first", split=False))


def make_metaspace(path):
    return make_pieces(path, True, FLAGGED, pre_tokenizers.Metaspace(prepend_scheme="always", split=True))


def make_suffix(path):
    proto = train_sentence_piece(
        vocab_size=350, model_type="bpe", normalization_rule_name="identity", treat_whitespace_as_suffix=True,
        character_coverage=0.98, user_defined_symbols=["<user>"])
    unused = 0
    for piece in proto.pieces:
        if piece.type == 1 and len(piece.piece) in (3, 4) and unused < 40:
            piece.type = 5
            unused += 1
    return save_sentence_piece(proto, path)


def save_sentence_piece(proto, path):
    data = proto.SerializeToString(deterministic=True)
    with open(path, "wb") as file:
        file.write(data)
    return sentencepiece.SentencePieceProcessor(model_proto=data)


def ids_and_texts(tokenizer, texts):
    """What the library says, whichever it is: ids, and texts of ids."""
    if isinstance(tokenizer, sentencepiece.SentencePieceProcessor):
        ids = [tokenizer.encode(text) for text in texts]
        return ids, [tokenizer.decode(each) for each in ids]
    if isinstance(tokenizer, Tokenizer):
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        return ids, [tokenizer.decode(each, skip_special_tokens=False) for each in ids]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return ids, [tokenizer.backend_tokenizer.decode(each, skip_special_tokens=False) for each in ids]


def main():
    os.makedirs(FOLDER, exist_ok=True)
    texts = TEXTS + more_texts() + ["\n".join(corpus()[:20])]
    makers = {"roberta.json": make_roberta, "llama3.json": make_llama3, "bert.json": make_bert, "gpt2": make_gpt2,
              "bert_cased": make_bert_cased, "unigram.model": lambda path: make_unigram(path, texts),
              "bytes.model": make_bytes, "suffix.model": make_suffix, "llama2.json": make_llama2,
              "no_prefix.json": make_no_prefix, "llama2_spaces.json": make_llama2_spaces, "mistral.json": make_mistral,
              "metaspace.json": make_metaspace}
    path = os.path.join(FOLDER, "expected.json")
    expected = {"texts": texts, "ids": {}, "decoded": {}, "special": {}}
    if sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            expected = json.load(file)
        assert expected["texts"] == texts
    for name in sys.argv[1:] or makers:
        tokenizer = makers[name](os.path.join(FOLDER, name))
        ids, decoded = ids_and_texts(tokenizer, texts)
        expected["ids"][name] = ids
        expected["decoded"][name] = [None if back == text else back for text, back in zip(texts, decoded)]
        if name.endswith(".model"):
            roles = {"beginning": tokenizer.bos_id(), "end_of_text": tokenizer.eos_id(), "pad": tokenizer.pad_id()}
            expected["special"][name] = {role: known for role, known in roles.items() if known >= 0}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(expected, file, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main()
