"""Compares `millrace data text` with the field's tokenisers, on files of $MILLRACE_DATA and on a corpus of odd characters:
codes to the byte, segmentation to the byte, WordPiece and SentencePiece numbers. compare_text.py MILLRACE FOLDER"""
import codecs
import gzip
import io
import json
import os
import random
import struct
import subprocess
import sys
import unicodedata

import sentencepiece
from subword_nmt import apply_bpe, get_vocab, learn_bpe
from tokenizers import BertWordPieceTokenizer

learn_bpe.tqdm = lambda merges: merges  # no bar
program, folder = sys.argv[1:3]
data = os.environ.get("MILLRACE_DATA")


def path(name):
    return os.path.join(folder, name)


def millrace(*words):
    answer = subprocess.run([program, "data", "text", *words], capture_output=True, text=True)
    assert answer.returncode == 0, (words, answer.stderr)
    return answer.stdout


def read(name):
    with open(name, encoding="utf-8", newline="\n") as file:
        return file.read()


def opened(name):
    """Lines end in line feeds only; subword-nmt's own program also breaks them at U+2028 and its like."""
    return open(name, encoding="utf-8", newline="\n")


def sentences(name):
    """What is in a token file, read by its description."""
    raw = open(name, "rb").read()
    assert raw[:8] == b"MILLTOK\n"
    version, width, count, tokens = struct.unpack_from("<IIQQ", raw, 8)
    assert version == 1
    numbers = struct.unpack_from(f"<{tokens}{'H' if width == 2 else 'I'}", raw, 128)
    starts = struct.unpack_from(f"<{count + 1}Q", raw, 128 + (tokens * width + 7) // 8 * 8)
    return [list(numbers[a:b]) for a, b in zip(starts, starts[1:])]


def write(name, text):
    with open(path(name), "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    return path(name)


# Characters whose class has been the same since Unicode 3.2: libraries of all ages agree on them.
OLD = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000
       and unicodedata.category(chr(c)) == unicodedata.ucd_3_2_0.category(chr(c)) != "Cn"]
SPACES = "\t\u00a0\u2009\u3000\u2028\u0085\u001c\u000b"


def odd_corpus(seed, lines):
    """Few letters, so that symbols come about in several ways; white space inside words; marks, signs and scripts."""
    r = random.Random(seed)
    letters = r.choice(["ab", "abc", "xyzä", "a\u0301b@", "<w/>a", "\\a.b", "日本a", "ab\u00a0", "abc\u2009"])
    words = []
    for _ in range(60):
        word = "".join(r.choice(letters) for _ in range(r.randint(1, 12)))
        if r.random() < 0.3:
            at = r.randint(0, len(word))
            word = word[:at] + r.choice(SPACES) + word[at:]
        words.append(word)
    words += ["".join(r.choice(OLD) for _ in range(r.randint(1, 6))).replace(" ", "").replace("\n", "") or "x"
              for _ in range(20)]
    words += ["@@", "a@@", "</w>", "a</w>", "ab" * 200, "x" * 333]
    weights = [1 / (i + 1) for i in range(len(words))]
    text = []
    for _ in range(lines):
        line = " ".join(r.choices(words, weights, k=r.randint(0, 20)))
        text.append(r.choice(["", " ", "  "]) + line.replace(" ", r.choice([" ", "  "])) + r.choice(["", " ", "\r"]))
    return "\n".join(text) + r.choice(["", "\n"])


def compare_bpe(name, merges):
    theirs = io.StringIO()
    with opened(name) as file:
        learn_bpe.learn_bpe(file, theirs, merges)
    for threads in ("1", "3"):
        millrace("learn-bpe", name, "-o", path("codes"), "--merges", str(merges), "--overwrite", "-j", threads)
        assert read(path("codes")) == theirs.getvalue(), (name, merges)
    bpe = apply_bpe.BPE(codecs.open(path("codes"), encoding="utf-8"))
    with opened(name) as file:
        split = "".join(bpe.process_line(line) for line in file)
    millrace("apply-bpe", name, "-c", path("codes"), "-o", path("split"), "--overwrite")
    assert read(path("split")) == split, name
    vocabulary = io.StringIO()
    with opened(path("split")) as file:
        get_vocab.get_vocab(file, vocabulary)
    millrace("vocab", name, "-c", path("codes"), "--counts", "-o", path("pieces"), "--overwrite")
    assert read(path("pieces")) == vocabulary.getvalue(), name
    # Merges undone where pieces are rare; fewer merges; codes as version 0.1 would read them.
    for threshold in (2, 10, 50):
        with opened(path("pieces")) as file:
            known = {line.split(" ")[0] for line in file.read().split("\n")[:-1] if int(line.split(" ")[1]) >= threshold}
        if not known:
            continue
        bpe = apply_bpe.BPE(codecs.open(path("codes"), encoding="utf-8"), vocab=known)
        with opened(name) as file:
            split = "".join(bpe.process_line(line) for line in file)
        millrace("apply-bpe", name, "-c", path("codes"), "--restrict-to", path("pieces"), "--vocabulary-threshold", str(threshold),
                 "-o", path("split"), "--overwrite")
        assert read(path("split")) == split, (name, threshold)
    bpe = apply_bpe.BPE(codecs.open(path("codes"), encoding="utf-8"), merges=merges // 3)
    with opened(name) as file:
        split = "".join(bpe.process_line(line) for line in file)
    # subword-nmt counts the line with the version among the merges where it is not skipped; it is.
    millrace("apply-bpe", name, "-c", path("codes"), "--merges", str(merges // 3), "-o", path("split"), "--overwrite")
    assert read(path("split")) == split, name
    # Without its first line the file says version 0.1.
    old = write("codes.old", read(path("codes")).split("\n", 1)[1])
    if os.path.getsize(old) > 0:
        bpe = apply_bpe.BPE(codecs.open(old, encoding="utf-8"))
        with opened(name) as file:
            split = "".join(bpe.process_line(line) for line in file)
        millrace("apply-bpe", name, "-c", old, "-o", path("split"), "--overwrite")
        assert read(path("split")) == split, name


def compare_wordpiece(name, lines):
    """A vocabulary of the text's own pieces: characters, beginnings and insides of words."""
    r = random.Random(len(lines))
    for lower in (True, False):
        plain = BertWordPieceTokenizer(None, lowercase=lower)
        words = [word for line in lines for word, _ in
                 plain._tokenizer.pre_tokenizer.pre_tokenize_str(plain._tokenizer.normalizer.normalize_str(line))]
        pieces = {"[PAD]": 0, "[UNK]": 0, "[CLS]": 0, "[SEP]": 0, "[MASK]": 0}
        for word in r.choices(words, k=4000):
            cut = r.randint(1, len(word))
            pieces.setdefault(word[:cut], 0)
            pieces.setdefault("##" + word[cut:] if word[cut:] else word, 0)
            pieces.setdefault(word[0], 0)
            if r.random() < 0.9:
                pieces.setdefault("##" + word[-1], 0)
        pieces = [p for p in pieces if "\n" not in p and "\r" not in p]
        vocabulary = write("vocab.txt", "\n".join(pieces) + "\n")
        theirs = BertWordPieceTokenizer({p: i for i, p in enumerate(pieces)}, lowercase=lower)
        flags = [] if lower else ["--cased"]
        millrace("encode", name, "--wordpiece", vocabulary, "-o", path("w.tokens"), "--overwrite", "--keep-special-tokens",
                 *flags)
        for line, ours in zip(lines, sentences(path("w.tokens")), strict=True):
            expected = theirs.encode(line, add_special_tokens=False).ids
            assert ours == expected, (line, ours, expected)


def compare_sentencepiece(name, kind, size, **more):
    # Trained from an iterator: its own reader of files drops what it calls odd.
    with opened(name) as file:
        lines = file.read().split("\n")
    model = path(f"{kind}.model")
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=path(kind), vocab_size=size,
                                             model_type=kind, hard_vocab_limit=False, minloglevel=2, **more)
    theirs = sentencepiece.SentencePieceProcessor(model_file=model)
    millrace("encode", name, "--sentencepiece", model, "-o", path("s.tokens"), "--overwrite")
    ours = sentences(path("s.tokens"))
    lines = lines[:-1] if lines[-1] == "" else lines
    for line, numbers in zip(lines, ours, strict=True):
        assert numbers == theirs.encode(line), line
    for vocabulary in (["--sentencepiece", model], ["-v", path(f"{kind}.vocab")]):
        text = millrace("decode", path("s.tokens"), *vocabulary)
        for line, decoded in zip(lines, text.split("\n")):
            assert decoded == theirs.decode(theirs.encode(line)), (line, decoded, theirs.decode(theirs.encode(line)))


odd_seeds = range(10)
for seed in odd_seeds:
    name = write("odd.txt", odd_corpus(seed, 400))
    for merges in (5, 400):
        compare_bpe(name, merges)
lines = ["".join(random.Random(i).choices(OLD + list("abc ,.") * 3000, k=30)).replace("\n", " ") for i in range(2000)]
lines += ["".join(["x", c, "y"]) for c in OLD if c != "\n"][::7]
compare_wordpiece(write("odd.txt", "\n".join(lines) + "\n"), lines)
spread = [line.replace("\r", "").replace("\0", "") for line in odd_corpus(99, 500).split("\n")]
compare_sentencepiece(write("odd.txt", "\n".join(spread) + "\n"), "unigram", 600, byte_fallback=True)
compared = ["odd characters"]

if data:
    text = {}
    for side in ("de", "en"):
        with gzip.open(f"{data}/multi30k/train.{side}.gz", "rt", encoding="utf-8", newline="\n") as file:
            text[side] = file.read()
    both = write("both.txt", text["de"] + text["en"])
    compare_bpe(both, 3000)
    for name in ("valid", "test"):
        lines = read(f"{data}/wikitext2/{name}.txt").split("\n")
        lines = lines[:-1] if lines[-1] == "" else lines
        compare_wordpiece(f"{data}/wikitext2/{name}.txt", lines)
    compare_bpe(f"{data}/wikitext2/valid.txt", 1000)
    some = write("some.txt", "\n".join(text["de"].split("\n")[:4000]) + "\n")
    compare_sentencepiece(some, "unigram", 2000)
    compare_sentencepiece(some, "bpe", 2000)
    compared.append("Multi30k and WikiText-2")
print(json.dumps(compared))
